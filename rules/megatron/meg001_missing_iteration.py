"""The tracker names an iteration that does not exist or is empty.

## What it checks
The folder that `latest_checkpointed_iteration.txt` names exists and holds a `.metadata`, `.distcp` files, or `mp_rank`
folders.

## Why it matters
Megatron loads what the tracker names, and stops if it is missing. A tracker that is written before the data is on disk, or a
cleanup that removes the old iteration first, leaves a run that cannot be resumed.

## How to fix
Write the number of a complete iteration into the tracker, or copy the missing folder.

## When it can be wrong
A run that is being saved at this moment looks the same. If only a part of a run was copied on purpose, check the folder of
the iteration instead of the run. `--ignore MEG001`, or a reason under `[ignore]`, silences it.

## Seen in
KempnerInstitute/KempnerForge#102, intelligent-machine-learning/dlrover#990
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.folders import TRACKER
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated


@rule(
    "MEG001",
    "missing-iteration",
    severity="error",
    on="megatron",
    when=lambda run: run.tracker is not None and run.tracker_is_sound,
)
def check(run: Megatron) -> Iterator[Problem]:
    # An iteration behind a link is there, on another disk: MEG034 reports it.
    if run.tracker is not None and run.tracker not in run.outside_links and run.tracker not in run.iterations:
        others = f"; there is {join_truncated(run.iterations)}" if run.iterations else ""
        yield Problem(
            f"it names {run.tracker}, which does not exist{others}",
            file=TRACKER,
            hint="write the number of a complete iteration into it, or copy the missing folder",
        )
    elif run.form == "empty":
        yield Problem(
            f"it names {run.tracker}, which holds no checkpoint",
            file=TRACKER,
            hint="write the number of an earlier iteration into it",
        )
