"""The index names a tensor that no shard holds.

## What it checks
Every tensor in the index's `weight_map` stands in the header of some shard. Shards that are missing or unreadable are
left out: IDX001 and the container rules speak of those.

## Why it matters
transformers starts the tensor from random numbers, or stops with a KeyError; Hub maintainers say that consistency
"must be checked downstream". A trainer that continues from such a checkpoint trains a layer that was never loaded.

## How to fix
Find the file that was left behind (often `mtp` or adapter weights) and upload it. If the tensor was dropped on
purpose, remove its entry from the index.

## When it can be wrong
An entry may be left over from a tensor that no loader needs: a rotary buffer (`inv_freq`) of an older version, or a
head that is tied and no longer stored. Nobody misses it then; remove the entry or write the index anew, or `--ignore
IDX002`. A tensor that stands neither in the index nor in a shard is for CFG003, CFG005 and CFG009.

## Seen in
huggingface/huggingface_hub#4725, huggingface/huggingface_hub#4391
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import count, few


@rule("IDX002", "absent-tensor", severity="error", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if ckpt.index is None or ckpt.index_agrees:
        return
    absent: dict[str, list[str]] = {}
    for tensor in ckpt.index.weight_map.keys() - ckpt.holders.keys():
        shard = ckpt.index.weight_map[tensor]
        if shard in ckpt.shards and ckpt.shards[shard].readable:
            absent.setdefault(shard, []).append(tensor)
    for shard, tensors in sorted(absent.items()):
        yield Problem(
            f"the index places {count(len(tensors), 'tensor')} in {shard} that no shard holds: {few(tensors)}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint="find the file they were left behind in; remove the entries if they were dropped on purpose",
        )
