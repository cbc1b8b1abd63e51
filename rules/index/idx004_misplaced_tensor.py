"""The index places a tensor in another shard than the one that holds it.

## What it checks
For every tensor that both the index and a shard's header name, they name the same file.

## Why it matters
Loaders that open the named shard and ask for the tensor (transformers, Megatron-Bridge) stop with a KeyError.

## How to fix
`ckptcheck scan --fix` writes the index anew from the headers.

## When it can be wrong
vLLM and SGLang read every tensor of every named shard, so a model that only they load is not hurt. A tensor of which
the index names the wrong one of two copies is IDX005, and one that is in no shard IDX002: this rule needs to have
seen the tensor elsewhere.

## Seen in
Blaizzy/mlx-vlm#1827
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import few


@rule("IDX004", "misplaced-tensor", severity="error", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is None or ckpt.index_agrees:
        return
    misplaced: dict[tuple[str, str], list[str]] = {}
    for tensor, named in ckpt.index.weight_map.items():
        shard = ckpt.shards.get(named)
        holder = ckpt.holders.get(tensor, named)
        if holder != named and shard is not None and shard.readable and tensor not in shard.tensors:
            misplaced.setdefault((named, holder), []).append(tensor)
    for (named, holder), tensors in sorted(misplaced.items()):
        yield Problem(
            f"the index places {few(tensors)} in {named}, but {holder} holds {'it' if len(tensors) == 1 else 'them'}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint="ckptcheck scan --fix writes the index anew from the headers",
        )
