"""Scales of the key-value cache are stored and not declared, or declared and not stored.

## What it checks
The quantization config has `kv_cache_scheme` (ModelOpt: `kv_cache_quant_algo`) if and only if the checkpoint holds scales of the
cache. A declared scheme is checked only if it is static.

## Why it matters
Engines choose the dtype of the cache by the declaration. They use undeclared scales only with `--kv-cache-dtype fp8`, and quantize
a declared cache without scales with 1.0.

## How to fix
Add or remove `kv_cache_scheme`, or calibrate the cache.

## When it can be wrong
It is only an information, because both may be intended: scales for users who switch the FP8 cache on themselves, or a declaration
whose scales a later step calibrates. The rule asks whether there is any scale at all, so it misses a model with scales in
half of its layers.

## Seen in
vllm-project/vllm#54623, sgl-project/sglang#39942
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import format_layers

NAMES = ("kv_cache_scheme", "kv_cache_quant_algo")


@rule(
    "QNT014",
    "cache-scale-declaration",
    severity="info",
    on="quantization",
    when=lambda ckpt: ckpt.quantization.is_known_method and bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    scales = cache_scales(ckpt)
    declaring = next(
        ((declared, name) for declared in ckpt.quantization.declarations for name in NAMES if declared.value.get(name)),
        None,
    )
    if scales and declaring is None:
        layer = min(scales)
        first = next(iter(scales[layer].values()))
        yield Problem(
            f"{format_layers(scales)} {'stores' if len(scales) == 1 else 'store'} "
            f"scales of the key-value cache, and no config declares them: "
            "engines use them only with --kv-cache-dtype fp8",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="add kv_cache_scheme to the quantization config",
        )
    scheme = ckpt.quantization.kv_cache
    if not scales and declaring is not None and scheme is not None and scheme.dynamic is False:
        declared, name = declaring
        yield Problem(
            "the config declares stored scales of the key-value cache, and there are none: engines use 1.0",
            file=declared.file,
            key=declared.key_path(name),
            hint="calibrate the cache, or remove the declaration",
        )
