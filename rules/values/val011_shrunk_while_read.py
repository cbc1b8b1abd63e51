"""A file shrank or disappeared while its values were read.

## What it checks
Every file has, to the end of the scan, the size it had at its beginning.

## Why it matters
Something writes to the checkpoint: a save, a sync or a clean-up is under way, and whoever loads it now gets half of each.

## How to fix
Check again when nothing writes to the folder.

## When it can be wrong
It has seen it happen, so it is right about the file; but a clean-up that removes a checkpoint which nobody wants any more
looks the same. A network file system with a stale cache may tell a wrong size, too. A file that is replaced by another of
the same size is no finding: the scan is incomplete then, and says so.

## Seen in
KempnerInstitute/KempnerForge#102 (the pointer moved before the shards were durable)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("VAL011", "shrunk-while-read", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for shard, what in ckpt.values.shrunk.items():
        yield Problem(what, file=shard, hint="check again when nothing writes to the folder")
