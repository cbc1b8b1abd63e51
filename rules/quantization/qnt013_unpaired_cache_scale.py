"""A layer has a scale for its keys and none for its values, or the reverse.

## What it checks
Where a layer stores a scale of the key-value cache, it stores one for keys and one for values (or the single `kv_scale` of older
checkpoints).

## Why it matters
With an FP8 cache vLLM stops at a scale for values without one for keys (an assertion that names nothing), and takes the scale of
the keys for the values where theirs is missing.

## How to fix
Export the scales again, both of them.

## When it can be wrong
With a cache that is not FP8 the scales are not used, and a lone one hurts nobody. An attention that keeps one latent
vector for keys and values, as DeepSeek's, may need one scale only: as `kv_scale` it is known, as `k_scale` alone it
fires, although vLLM then takes it for both, as meant. `--ignore QNT013` there. A layer that lost both is not seen
here.

## Seen in
vllm-project/vllm#46264
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales
from ckptcheck.phrase import ranges


@rule(
    "QNT013",
    "unpaired-cache-scale",
    severity="error",
    when=lambda ckpt: ckpt.quantization is not None and bool(ckpt.anatomy.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    alone: dict[str, dict[int, str]] = {}
    for layer, scales in cache_scales(ckpt).items():
        if len(scales.keys() & {"k", "v"}) == 1 and "kv" not in scales:
            part = "k" if "k" in scales else "v"
            alone.setdefault(part, {})[layer] = scales[part]
    for part, layers in alone.items():
        first = layers[min(layers)]
        lacking, effect = (
            ("values", "vLLM takes the keys' for both") if part == "k" else ("keys", "vLLM stops with an FP8 cache")
        )
        yield Problem(
            f"{'layer' if len(layers) == 1 else 'layers'} {ranges(layers)} {'has' if len(layers) == 1 else 'have'} this scale "
            f"and none for the {lacking}: {effect}",
            file=ckpt.holders[first],
            key=first,
            hint="export both scales",
        )
