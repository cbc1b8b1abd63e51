"""The index places a tensor in another shard than the one that holds it.

## What it checks
For every tensor that both the index and a shard's header name, they name the same file.

## Why it matters
Loaders that open the named shard and ask for the tensor (transformers, Megatron-Bridge) stop with a KeyError.

## How to fix
`ckptcheck scan --fix` writes the index again from the headers.

## When it can be wrong
vLLM and SGLang read every tensor of every named shard, so a model that only they load works. IDX005 reports a tensor with two
copies, and IDX002 one that is in no shard; this rule fires only if another shard holds the tensor.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import join_truncated


@rule("IDX004", "misplaced-tensor", severity="error", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if ckpt.index_agrees:
        return
    misplaced: dict[tuple[str, str], list[str]] = {}
    for tensor, named in ckpt.index.weight_map.items():
        shard = ckpt.shards.get(named)
        holder = ckpt.tensor_to_file.get(tensor, named)
        if holder != named and shard is not None and shard.readable and tensor not in shard.tensors:
            misplaced.setdefault((named, holder), []).append(tensor)
    for (named, holder), tensors in sorted(misplaced.items()):
        yield Problem(
            f"the index places {join_truncated(tensors)} in {named}, but {holder} holds {'it' if len(tensors) == 1 else 'them'}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint="ckptcheck scan --fix writes the index again from the headers",
        )
