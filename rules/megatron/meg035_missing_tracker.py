"""A run with iterations and no tracker.

## What it checks
Beside the folders of iterations lies `latest_checkpointed_iteration.txt` (or `latest_train_state.pt`, which Megatron Bridge
writes).

## Why it matters
Megatron prints that it could not find the file "and will start from random": the job trains from scratch, and nothing
fails.

## How to fix
Write the number of the iteration to load into `latest_checkpointed_iteration.txt`.

## When it can be wrong
A folder in which iterations are only collected, to be loaded one by one. `--ignore MEG035` silences it.

## Seen in
megatron/training/checkpointing.py, read_metadata: a missing tracker is no error
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tree import BRIDGE_TRACKER, TRACKER
from ckptcheck.phrase import few


@rule(
    "MEG035",
    "missing-tracker",
    severity="warning",
    on="megatron",
    when=lambda run: bool(run.iterations) and (run.common is not None or run.form == "legacy"),
)
def check(run: Megatron) -> Iterator[Problem]:
    if run.tracker is None and BRIDGE_TRACKER not in run.files:
        yield Problem(
            f"there is no {TRACKER} beside {few(run.iterations)}: Megatron starts from random weights, and nothing fails",
            hint="write the number of the iteration to load into it",
        )
