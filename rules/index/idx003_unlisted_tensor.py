"""A shard holds a tensor that the index does not list.

## What it checks
Every tensor in the header of an indexed shard has an entry in `weight_map`.

## Why it matters
Consumers disagree: vLLM and SGLang read every tensor of every shard, while loaders and exporters that walk the index
(Model-Optimizer, transformers 4, MLX) leave the tensor out without a word. Layers of multi-token prediction vanish
this way.

## How to fix
`ckptcheck scan --fix` writes the index anew from the headers.

## When it can be wrong
Where only vLLM or SGLang load the model, every tensor of a named shard arrives, and the index makes no difference.
`--ignore IDX003` there. Every tensor of the shard counts, also one that nobody misses, such as a rotary buffer.
Tensors in files that the index does not name at all are SET004's.

## Seen in
NVIDIA/Model-Optimizer#2427, osaurus-ai/vmlx-swift#388
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule("IDX003", "unlisted-tensor", severity="error", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is None or ckpt.index_agrees:
        return
    unlisted: dict[str, list[str]] = {}
    for tensor in ckpt.holders.keys() - ckpt.index.weight_map.keys():
        unlisted.setdefault(ckpt.holders[tensor], []).append(tensor)
    for shard, tensors in sorted(unlisted.items()):
        one = len(tensors) == 1
        yield Problem(
            f"{count(len(tensors), 'tensor')} in this shard {'is' if one else 'are'} not in the index, "
            f"so loaders that walk the index leave {'it' if one else 'them'} out: {few(tensors)}",
            file=shard,
            key=min(tensors),
            hint="ckptcheck scan --fix writes the index anew from the headers",
        )
