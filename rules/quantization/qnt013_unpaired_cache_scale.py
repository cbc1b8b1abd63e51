"""A layer has a scale for its keys and none for its values, or the reverse.

## What it checks
A layer that stores a scale of the key-value cache stores one for keys and one for values (or the single `kv_scale` of older
checkpoints).

## Why it matters
With an FP8 cache, vLLM stops at a scale for values without one for keys (an assertion that names nothing). If the scale of the
values is missing, it uses that of the keys for both.

## How to fix
Export both scales again.

## When it can be wrong
- With a cache that is not FP8 the scales are not used, and a single one does no harm.
- An attention with one latent vector for keys and values, as in DeepSeek, may need one scale only. The rule knows it as `kv_scale`,
  and reports `k_scale` alone, which vLLM uses for both, as intended. Use `--ignore QNT013` there.
- It misses a layer that lost both scales.

## Seen in
vllm-project/vllm#46264
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import format_layers


@rule(
    "QNT013",
    "unpaired-cache-scale",
    severity="error",
    on="quantization",
    when=lambda ckpt: bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    alone: dict[str, dict[int, str]] = {}
    for layer, scales in cache_scales(ckpt).items():
        if len(scales.keys() & {"k", "v"}) == 1 and "kv" not in scales:
            part = "k" if "k" in scales else "v"
            alone.setdefault(part, {})[layer] = scales[part]
    for part, layers in alone.items():
        first = layers[min(layers)]
        missing, effect = (
            ("values", "vLLM uses the keys' scale for both")
            if part == "k"
            else ("keys", "vLLM stops with an FP8 cache")
        )
        yield Problem(
            f"{format_layers(layers)} "
            f"{'has' if len(layers) == 1 else 'have'} this scale and none for the {missing}: {effect}",
            file=ckpt.tensor_to_file[first],
            key=first,
            hint="export both scales",
        )
