"""The tracker holds neither a number nor `release`.

## What it checks
`latest_checkpointed_iteration.txt` holds the number of an iteration or the word `release`, and nothing else.

## Why it matters
Megatron prints "Invalid metadata file" and exits. A full disk or a killed job leaves an empty tracker.

## How to fix
Write the number of the last complete iteration into it.

## When it can be wrong
It cannot: Megatron accepts nothing else. `--ignore MEG002` silences it.

## Seen in
KempnerInstitute/KempnerForge#102
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.folders import TRACKER
from ckptcheck.checkpoint.megatron.megatron import Megatron


@rule(
    "MEG002",
    "malformed-tracker",
    severity="error",
    on="megatron",
    when=lambda run: run.tracker is not None and not run.tracker_is_sound,
)
def check(run: Megatron) -> Iterator[Problem]:
    if not run.tracker:
        yield Problem("it is empty", file=TRACKER, hint="write the number of the last complete iteration into it")
    else:
        yield Problem(
            f"it says {clip(run.tracker)!r}, which is neither a number nor 'release'",
            file=TRACKER,
            hint="write the number of the last complete iteration into it",
        )
