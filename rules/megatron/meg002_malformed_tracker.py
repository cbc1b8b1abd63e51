"""The tracker holds neither a number nor `release`.

## What it checks
`latest_checkpointed_iteration.txt` holds a number of iterations, or the word `release`, and nothing else.

## Why it matters
Megatron prints "Invalid metadata file" and exits. An empty tracker is what a full disk or a job that was killed leaves.

## How to fix
Write the number of the last whole iteration into it.

## When it can be wrong
It cannot: Megatron accepts nothing else. `--ignore MEG002` silences it.

## Seen in
KempnerInstitute/KempnerForge#102
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tree import TRACKER


@rule(
    "MEG002",
    "malformed-tracker",
    severity="error",
    on="megatron",
    when=lambda run: run.tracker is not None and not run.tracker_is_sound,
)
def check(run: Megatron) -> Iterator[Problem]:
    if not run.tracker:
        yield Problem("it is empty", file=TRACKER, hint="write the number of the last whole iteration into it")
    else:
        yield Problem(
            f"it says {clipped(run.tracker)!r}, which is neither a number nor 'release'",
            file=TRACKER,
            hint="write the number of the last whole iteration into it",
        )
