"""Scales of the key-value cache are there and not declared, or declared and not there.

## What it checks
`kv_cache_scheme` (ModelOpt: `kv_cache_quant_algo`) stands in the quantization config exactly where the checkpoint holds scales of
the cache, if the scheme is a static one.

## Why it matters
Engines choose the dtype of the cache by the declaration. Scales that nobody declares are used only with
`--kv-cache-dtype fp8`; a declared cache without scales is quantized with 1.0.

## How to fix
Add or remove `kv_cache_scheme`, or calibrate the cache.

## When it can be wrong
It is only an information, for both may be meant: scales for those who switch the FP8 cache on themselves, or a
declaration whose scales another step will calibrate. It asks whether there is any scale at all, so a model with
scales in half of its layers passes, and of declared schemes only static ones are looked at.

## Seen in
vllm-project/vllm#54623, sgl-project/sglang#39942
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales
from ckptcheck.phrase import ranges

NAMES = ("kv_cache_scheme", "kv_cache_quant_algo")


@rule(
    "QNT014",
    "cache-scale-declaration",
    severity="info",
    when=lambda ckpt: (
        ckpt.quantization is not None and ckpt.quantization.known and bool(ckpt.anatomy.layers) and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    assert ckpt.quantization is not None
    found = cache_scales(ckpt)
    declaring = next(
        ((declared, name) for declared in ckpt.quantization.declared for name in NAMES if declared.value.get(name)),
        None,
    )
    if found and declaring is None:
        layer = min(found)
        first = next(iter(found[layer].values()))
        yield Problem(
            f"layers {ranges(found)} store scales of the key-value cache, and no config declares it: "
            "engines use them only when they are told to",
            file=ckpt.holders[first],
            key=first,
            hint="add kv_cache_scheme to the quantization config",
        )
    scheme = ckpt.quantization.kv_cache
    if not found and declaring is not None and scheme is not None and scheme.dynamic is False:
        declared, name = declaring
        yield Problem(
            "the key-value cache is declared quantized with stored scales, and there is none: engines take 1.0",
            file=declared.file,
            key=declared.path(name),
            hint="calibrate the cache, or remove the declaration",
        )
