"""A scale of the key-value cache has a name that vLLM drops.

## What it checks
vLLM's renaming maps the names of the stored scales of keys and values to the attention module of their layer:
`self_attn.k_proj.k_scale` (ModelOpt), `self_attn.k_scale` (compressed-tensors), `self_attn.k_proj.output_scale`,
`self_attn.k_cache.scale`, `mixer.k_proj.k_scale`.

## Why it matters
vLLM renames the names it knows, finds no parameter for others, warns once, and goes on with 1.0. The cache then clips or loses the
values that the scale was made for, and long prompts get worse without an error.

## How to fix
Rename the scales to one of the forms above.

## When it can be wrong
A model's own loader may map other names.

## Seen in
vllm-project/vllm#54623, vllm-project/vllm#46264
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales, scale_owner
from ckptcheck.checkpoint.views import QuantizedCheckpoint
from ckptcheck.text.formatting import count


@rule(
    "QNT015",
    "cache-scale-placement",
    severity="warning",
    on="quantization",
    when=lambda ckpt: bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: QuantizedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.components.stack
    if stack is None:
        return
    lost: list[str] = []
    for layer, scales in cache_scales(ckpt).items():
        attention = {
            name.rpartition("_proj.")[0].rpartition(".")[0]
            for name in ckpt.components.layers[layer]
            if "_proj." in name
        }
        lost += [
            name
            for name in scales.values()
            if attention and scale_owner(name.removeprefix(stack.full_name(layer) + ".")) not in attention
        ]
    if lost:
        yield Problem(
            f"vLLM finds no attention module for {count(len(lost), 'scale of the cache', 'scales of the cache')} with such a name, "
            f"drops {'it' if len(lost) == 1 else 'them'} and uses 1.0",
            file=ckpt.tensor_to_file[lost[0]],
            key=lost[0],
            hint="call it self_attn.k_scale and self_attn.v_scale, or as ModelOpt does",
        )
