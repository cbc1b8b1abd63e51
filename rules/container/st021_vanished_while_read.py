"""A shard disappeared or changed while ckptcheck read it.

## What it checks
Every `.safetensors` file that existed when ckptcheck listed the folder can be read, and has the size it had then.

## Why it matters
Something is writing to the folder: an unfinished save, a sync, or the rotation that deletes old checkpoints. A program that
loads it now, such as a rollout engine that watches for new weights, gets parts of two states or an error. The other findings
about this folder describe a past moment.

## How to fix
Check again when nothing writes to it. Save to a temporary folder, and rename it when it is complete.

## When it can be wrong
On a network file system the listing may be older than the file, so a file that was completed seconds ago looks changed: scan
again. The listing is compared only when the header is read: a large shard whose values are rewritten in place, or that grows,
looks sound here (VAL011 reports one that shrinks while its values are read).

## Seen in
No public report names it: a race shows as a truncated or missing file elsewhere (ST001, IDX001).
"""

from collections.abc import Iterator
from dataclasses import replace

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint


@rule(
    "ST021",
    "vanished-while-read",
    severity="error",
    when=lambda ckpt: ckpt.has_shards,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    for problem in ckpt.defects("vanished"):
        yield replace(problem, hint="check again when nothing writes to the folder")
