"""The index names a tensor that no shard holds.

## What it checks
Every tensor in the index's `weight_map` is in the header of some shard. Missing and unreadable shards are excluded: IDX001
and the container rules report those.

## Why it matters
transformers initializes the tensor with random numbers, or stops with a KeyError; Hub maintainers say that consistency "must
be checked downstream". A trainer that continues from such a checkpoint trains a layer that was never loaded.

## How to fix
Find the file that was left behind (often `mtp` or adapter weights) and upload it. If the tensor was dropped on purpose,
remove its entry from the index.

## When it can be wrong
The entry may belong to a tensor that no loader needs: a rotary buffer (`inv_freq`) of an older version, or a tied head that
is no longer stored. Then remove the entry, write the index again, or use `--ignore IDX002`. CFG003, CFG005 and CFG009 report
tensors that are neither in the index nor in a shard.

## Seen in
huggingface/huggingface_hub#4725, huggingface/huggingface_hub#4391
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint
from ckptcheck.text.formatting import count, join_truncated


@rule("IDX002", "absent-tensor", severity="error", on="index", when=lambda ckpt: ckpt.index_decides)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    if ckpt.index_agrees:
        return
    absent: dict[str, list[str]] = {}
    for tensor in ckpt.index.weight_map.keys() - ckpt.tensor_to_file.keys():
        shard = ckpt.index.weight_map[tensor]
        if shard in ckpt.shards and ckpt.shards[shard].readable:
            absent.setdefault(shard, []).append(tensor)
    for shard, tensors in sorted(absent.items()):
        yield Problem(
            f"the index places {count(len(tensors), 'tensor')} in {shard} that no shard holds: {join_truncated(tensors)}",
            file=ckpt.index.file,
            key=f"weight_map.{min(tensors)}",
            hint="find the file they were left behind in; remove the entries if they were dropped on purpose",
        )
