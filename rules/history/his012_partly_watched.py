"""Only a part of what was sent passed the watch.

## What it checks
- The record says of every sync that all weights passed the watch.

## Why it matters
- A fault in the rest cannot be found in this record, and a tensor that is missing from it may have been sent.

## How to fix
- Watch every rank that sends, each with a record of its own, or the engine's side too.

## When it can be wrong
- The job sends the rest nowhere: then nothing is missing.

## Seen in
slime with pipeline parallelism (each stage broadcasts its own weights), NeMo-RL with nccl_reshard
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History


@rule(
    "HIS012",
    "partly-watched",
    severity="info",
    on="history",
    when=lambda history: any(sync.sent for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    for reason in dict.fromkeys(sync.partial for sync in history.syncs if sync.partial):
        yield Problem(
            f"only a part of what was sent passed the watch: {reason}",
            hint="watch every rank that sends, each with a record of its own, or the engine's side too",
        )
