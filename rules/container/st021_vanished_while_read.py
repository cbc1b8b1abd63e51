"""A shard disappeared or changed while it was being read.

## What it checks
Every `.safetensors` file that was there when the folder was listed can be read, and has the size it had then.

## Why it matters
Something is writing to the folder: a save that is not finished, a sync, or the rotation that deletes old checkpoints.
Whoever loads it now, such as a rollout engine that watches for new weights, gets parts of two states or an error.
What the other rules say about this folder is true of a moment that has passed.

## How to fix
Check again when nothing writes to it. Save to a temporary folder and rename it when it is whole.

## When it can be wrong
On a network file system a listing may be older than the file, so that a file which was complete seconds ago looks
changed; scan again. Only what is read for the header is held against the listing: a large shard whose values are
rewritten in place, or which grows, looks sound here (VAL011 sees one that shrinks while its values are read).

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
