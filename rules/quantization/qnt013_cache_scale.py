"""Scales of the key-value cache are incomplete, or under a name that vLLM drops.

## What it checks
- A layer that stores a scale of the cache stores one for keys and one for values (or the single `kv_scale` of older
  checkpoints).
- vLLM's renaming maps the names of the stored scales to the attention module of their layer: `self_attn.k_proj.k_scale`
  (ModelOpt), `self_attn.k_scale` (compressed-tensors), `self_attn.k_proj.output_scale`, `self_attn.k_cache.scale`,
  `mixer.k_proj.k_scale` (a warning).

## Why it matters
With an FP8 cache, vLLM stops at a scale for values without one for keys (an assertion that names nothing). If the scale of the
values is missing, it uses that of the keys for both. It renames the names it knows, finds no parameter for others, warns once,
and goes on with 1.0: the cache then clips or loses the values that the scale was made for, and long prompts get worse without
an error.

## How to fix
Export both scales, under one of the names above, or calibrate the cache.

## When it can be wrong
- With a cache that is not FP8 the scales are not used, and a single one does no harm.
- An attention with one latent vector for keys and values, as in DeepSeek, may need one scale only. The rule knows it as
  `kv_scale`, and reports `k_scale` alone, which vLLM uses for both, as intended. Use `--ignore QNT013` there.
- A model's own loader may map other names.
- It misses a layer that lost both scales.

## Seen in
vllm-project/vllm#46264, vllm-project/vllm#54623, sgl-project/sglang#39942
"""

from collections.abc import Iterator, Mapping

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.scales import cache_scales, scale_owner
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count, format_layers

Scales = Mapping[int, Mapping[str, str]]
"""Layer → part (``k``, ``v``, ``kv``) → the tensor with its scale."""


@rule(
    "QNT013",
    "cache-scale",
    severity="error",
    on="quantization",
    when=lambda ckpt: bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    scales = cache_scales(ckpt)
    yield from _find_unpaired(ckpt, scales)
    yield from _find_misplaced(ckpt, scales)


def _find_unpaired(ckpt: QuantizedCheckpoint, scales: Scales) -> Iterator[Problem]:
    alone: dict[str, dict[int, str]] = {}
    for layer, parts in scales.items():
        if len(parts.keys() & {"k", "v"}) == 1 and "kv" not in parts:
            part = "k" if "k" in parts else "v"
            alone.setdefault(part, {})[layer] = parts[part]
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


def _find_misplaced(ckpt: QuantizedCheckpoint, scales: Scales) -> Iterator[Problem]:
    """Yield the scales whose names vLLM maps to no attention module."""
    stack = ckpt.components.stack
    if stack is None:
        return
    lost: list[str] = []
    for layer, parts in scales.items():
        attention = {
            name.rpartition("_proj.")[0].rpartition(".")[0]
            for name in ckpt.components.layers[layer]
            if "_proj." in name
        }
        lost += [
            name
            for name in parts.values()
            if attention and scale_owner(name.removeprefix(stack.full_name(layer) + ".")) not in attention
        ]
    if lost:
        yield Problem(
            f"vLLM finds no attention module for {count(len(lost), 'scale of the cache', 'scales of the cache')} with such a name, "
            f"drops {'it' if len(lost) == 1 else 'them'} and uses 1.0",
            file=ckpt.tensor_to_file[lost[0]],
            key=lost[0],
            severity="warning",
            hint="call it self_attn.k_scale and self_attn.v_scale, or as ModelOpt does",
            names=tuple(lost),
        )
