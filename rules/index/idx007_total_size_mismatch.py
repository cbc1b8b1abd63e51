"""The index's total_size differs from the sum of the shards.

## What it checks
`metadata.total_size` of the index equals the bytes of all tensors in the headers of its shards.

## Why it matters
Tools plan memory and judge a download complete by this number; a wrong one means that the index was not written with these
shards.

## How to fix
`ckptcheck scan --fix` corrects the number once the shards are complete.

## When it can be wrong
Some writers have counted tied tensors twice, or padding, for years, and loaders ignore the number: put a reason under
`[ignore]` if your writer does that. The rule is quiet while a shard is missing or unreadable, because the sum is unknown
then. An equal sum does not prove that the tensors are the right ones.

## Seen in
Edge0-AI/Edge0#104, exo-explore/exo#1956
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import IndexedCheckpoint


@rule(
    "IDX007",
    "total-size-mismatch",
    severity="warning",
    on="index",
    when=lambda ckpt: ckpt.index_decides and "total_size" in ckpt.index.metadata,
)
def check(ckpt: IndexedCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    declared = ckpt.index.metadata["total_size"]
    actual = sum(ckpt.shards[name].nbytes for name in ckpt.model_files)
    # A tensor that several shards hold is counted once by some writers; IDX005 speaks of that.
    if declared != actual and declared != sum(tensor.nbytes for tensor in ckpt.tensors.values()):
        said = f"{declared:,} bytes" if type(declared) is int else repr(declared)
        yield Problem(
            f"total_size is {said}, but the tensors have {actual:,} bytes",
            file=ckpt.index.file,
            key="metadata.total_size",
            hint="ckptcheck scan --fix corrects it",
        )
