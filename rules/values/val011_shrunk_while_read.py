"""A file shrank or disappeared while its values were read.

## What it checks
Every file keeps its size from the beginning of the scan to its end.

## Why it matters
Something writes to the checkpoint: a save, a sync or a clean-up. Whoever loads it now gets a part of the old state and a part of
the new one.

## How to fix
Check again when nothing writes to the folder.

## When it can be wrong
- The rule reports what happened to the file. A clean-up that removes an obsolete checkpoint looks the same.
- A network file system with a stale cache may return a wrong size.
- A file that is replaced by another of the same size is not a finding. The scan is incomplete then, and says so.

## Seen in
KempnerInstitute/KempnerForge#102 (the pointer moved before the shards were durable)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule("VAL011", "shrunk-while-read", severity="error", on="values", when=lambda ckpt: bool(ckpt.tensors))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for shard, event in ckpt.values.shrunk.items():
        yield Problem(event, file=shard, hint="check again when nothing writes to the folder")
