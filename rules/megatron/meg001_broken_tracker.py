"""The tracker is missing, malformed, or names an iteration that does not exist or is empty.

## What it checks
- The folder that `latest_checkpointed_iteration.txt` names exists and holds a `.metadata`, `.distcp` files, or `mp_rank` folders.
- `latest_checkpointed_iteration.txt` holds the number of an iteration or the word `release`, and nothing else.
- A folder with iterations holds `latest_checkpointed_iteration.txt` (or `latest_train_state.pt`, which Megatron Bridge writes).

## Why it matters
- Megatron loads the iteration that the tracker names, and stops if it is missing. A tracker that is written before the
  data is on disk, or a cleanup that removes the old iteration first, leaves a run that cannot be resumed.
- At a malformed tracker Megatron prints "Invalid metadata file" and exits. A full disk or a killed job leaves an empty tracker.
- Without a tracker Megatron prints that it could not find the file "and will start from random": the job trains from scratch,
  without an error.

## How to fix
Write the number of the last complete iteration into `latest_checkpointed_iteration.txt`, or copy the missing folder.

## When it can be wrong
- A run that is being saved at this moment looks the same. If only a part of a run was copied on purpose, check the folder of the
  iteration instead of the run.
- A folder may only collect iterations that are loaded one by one.

## Seen in
KempnerInstitute/KempnerForge#102, intelligent-machine-learning/dlrover#990; megatron/training/checkpointing.py, read_metadata: a
missing tracker is no error
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.megatron.folders import BRIDGE_TRACKER, TRACKER
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated


@rule(
    "MEG001",
    "broken-tracker",
    severity="error",
    on="megatron",
    when=lambda run: (
        run.tracker is not None or (bool(run.iterations) and (run.common_state is not None or run.form == "legacy"))
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    if run.tracker is None:
        yield from _find_no_tracker(run)
    elif run.tracker_is_sound:
        yield from _find_no_iteration(run)
    else:
        yield from _find_malformed(run)


def _find_no_iteration(run: Megatron) -> Iterator[Problem]:
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
            hint="copy its files here, or write the number of an earlier iteration into it",
        )


def _find_malformed(run: Megatron) -> Iterator[Problem]:
    if not run.tracker:
        yield Problem("it is empty", file=TRACKER, hint="write the number of the last complete iteration into it")
    else:
        yield Problem(
            f"it says {clip(run.tracker)!r}, which is neither a number nor 'release'",
            file=TRACKER,
            hint="write the number of the last complete iteration into it",
        )


def _find_no_tracker(run: Megatron) -> Iterator[Problem]:
    if run.tracker is None and BRIDGE_TRACKER not in run.files:
        yield Problem(
            f"there is no {TRACKER} beside {join_truncated(run.iterations)}: Megatron starts from random weights, "
            "without an error",
            hint="write the number of the iteration to load into it",
            severity="warning",
        )
