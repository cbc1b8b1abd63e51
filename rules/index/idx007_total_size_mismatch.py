"""The index's total_size is not what the shards add up to.

## What it checks
`metadata.total_size` of the index equals the bytes of all tensors in the headers of its shards.

## Why it matters
Tools plan memory and judge a download complete by this number; one that is wrong means that the index was not written
with these shards.

## How to fix
`ckptcheck scan --fix` corrects the number once the shards are whole.

## When it can be wrong
Writers have counted tied tensors twice, or padding, for years, and loaders do not look at the number; a team whose
writer does that keeps a reason under `[ignore]`. Nothing is said while a shard is missing or cannot be read, as the
sum is not known then. An equal sum does not show that the tensors are the right ones.

## Seen in
Edge0-AI/Edge0#104, exo-explore/exo#1956
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "IDX007",
    "total-size-mismatch",
    severity="warning",
    when=lambda ckpt: ckpt.index_decides and "total_size" in ckpt.index.metadata,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.index is not None
    ckpt.require_whole()
    declared = ckpt.index.metadata["total_size"]
    actual = sum(ckpt.shards[name].nbytes for name in ckpt.loaded)
    # A tensor that several shards hold is counted once by some writers; IDX005 speaks of that.
    if declared != actual and declared != sum(tensor.nbytes for tensor in ckpt.tensors.values()):
        said = f"{declared:,} bytes" if type(declared) is int else repr(declared)
        yield Problem(
            f"total_size is {said}, but the tensors have {actual:,} bytes",
            file=ckpt.index.file,
            key="metadata.total_size",
            hint="ckptcheck scan --fix corrects it",
        )
