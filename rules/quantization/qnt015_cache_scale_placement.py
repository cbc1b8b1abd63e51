"""A scale of the key-value cache has a name that vLLM drops.

## What it checks
The names under which the scales of keys and values are stored lead, by vLLM's renaming, to the attention module of their layer:
`self_attn.k_proj.k_scale` (ModelOpt), `self_attn.k_scale` (compressed-tensors), `self_attn.k_proj.output_scale`,
`self_attn.k_cache.scale`, `mixer.k_proj.k_scale`.

## Why it matters
vLLM renames what it knows, finds no parameter for the rest, warns once and goes on with 1.0: the cache then clips or loses what
the scale was made for, and long prompts get worse without an error.

## How to fix
Rename the scales to one of the forms above.

## When it can be wrong
Models whose own loader maps other names.

## Seen in
vllm-project/vllm#54623, vllm-project/vllm#46264
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.quantization.cache_scales import cache_scales, owner
from ckptcheck.phrase import count


@rule(
    "QNT015",
    "cache-scale-placement",
    severity="warning",
    when=lambda ckpt: ckpt.quantization is not None and bool(ckpt.anatomy.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.anatomy.stack
    assert stack is not None
    lost: list[str] = []
    for layer, scales in cache_scales(ckpt).items():
        attention = {
            name.rpartition("_proj.")[0].rpartition(".")[0] for name in ckpt.anatomy.layers[layer] if "_proj." in name
        }
        lost += [
            name
            for name in scales.values()
            if attention and owner(name.removeprefix(stack.name(layer) + ".")) not in attention
        ]
    if lost:
        yield Problem(
            f"vLLM finds no attention module for {count(len(lost), 'scale of the cache', 'scales of the cache')} called so, "
            "drops them and takes 1.0",
            file=ckpt.holders[lost[0]],
            key=lost[0],
            hint="call it self_attn.k_scale and self_attn.v_scale, or as ModelOpt does",
        )
