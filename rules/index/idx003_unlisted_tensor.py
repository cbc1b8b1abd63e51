"""A shard holds a tensor that the index does not list.

## What it checks
Every tensor in the header of an indexed shard has an entry in `weight_map`.

## Why it matters
Consumers disagree: vLLM and SGLang read every tensor of every shard, while loaders and exporters that walk the index
(Model-Optimizer, transformers 4, MLX) silently omit the tensor. Layers of multi-token prediction get lost this way.

## How to fix
`ckptcheck scan --fix` writes the index again from the headers.

## When it can be wrong
If only vLLM or SGLang loads the model, every tensor of a named shard is loaded whatever the index says: use `--ignore
IDX003`. Every tensor of the shard counts, even one that no loader needs, such as a rotary buffer. SET004 reports files that
the index does not name.

## Seen in
NVIDIA/Model-Optimizer#2427, osaurus-ai/vmlx-swift#388
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("IDX003", "unlisted-tensor", severity="error", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if ckpt.index_agrees:
        return
    unlisted: dict[str, list[str]] = {}
    for tensor in ckpt.tensor_to_file.keys() - ckpt.index.weight_map.keys():
        unlisted.setdefault(ckpt.tensor_to_file[tensor], []).append(tensor)
    for shard, tensors in sorted(unlisted.items()):
        one = len(tensors) == 1
        yield Problem(
            f"{count(len(tensors), 'tensor')} in this shard {'is' if one else 'are'} not in the index, "
            f"so loaders that follow the index omit {'it' if one else 'them'}: {join_truncated(tensors)}",
            file=shard,
            key=min(tensors),
            hint="ckptcheck scan --fix writes the index again from the headers",
        )
