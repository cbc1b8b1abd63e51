"""The tracker names an iteration that is not there.

## What it checks
The folder that `latest_checkpointed_iteration.txt` names exists and holds something: a `.metadata`, `.distcp` files, or
`mp_rank` folders.

## Why it matters
Megatron loads what the tracker names, and stops. Trackers that are moved before the data is on disk, and cleaners that
remove the old iteration first, leave a run from which nothing can be resumed.

## How to fix
Write the number of a whole iteration into the tracker, or copy the folder that is missing.

## When it can be wrong
A run that is being saved at this moment looks the same. Where only a part of a run was copied on purpose, name the
iteration's folder instead. `--ignore MEG001`, or a reason under `[ignore]`, silences it.

## Seen in
KempnerInstitute/KempnerForge#102, intelligent-machine-learning/dlrover#990
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tree import TRACKER
from ckptcheck.phrase import few


@rule(
    "MEG001",
    "missing-iteration",
    severity="error",
    on="megatron",
    when=lambda run: run.tracker is not None and run.tracker_is_sound,
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.tracker is not None
    if run.tracker in run.leaving:
        return  # it is there, on another disk: MEG034
    if run.tracker not in run.iterations:
        others = f"; there is {few(run.iterations)}" if run.iterations else ""
        yield Problem(
            f"it names {run.tracker}, which does not exist{others}",
            file=TRACKER,
            hint="write the number of a whole iteration into it, or copy the missing folder",
        )
    elif run.form == "empty":
        yield Problem(
            f"it names {run.tracker}, which holds no checkpoint", file=TRACKER, hint="take an earlier iteration"
        )
