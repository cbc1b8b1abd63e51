"""A run has iterations but no tracker.

## What it checks
A folder with iterations holds `latest_checkpointed_iteration.txt` (or `latest_train_state.pt`, which Megatron Bridge writes).

## Why it matters
Megatron prints that it could not find the file "and will start from random": the job trains from scratch, without an error.

## How to fix
Write the number of the iteration to load into `latest_checkpointed_iteration.txt`.

## When it can be wrong
A folder may only collect iterations that are loaded one by one. `--ignore MEG035` silences it.

## Seen in
megatron/training/checkpointing.py, read_metadata: a missing tracker is no error
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.folders import BRIDGE_TRACKER, TRACKER
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import join_truncated


@rule(
    "MEG035",
    "missing-tracker",
    severity="warning",
    on="megatron",
    when=lambda run: bool(run.iterations) and (run.common_state is not None or run.form == "legacy"),
)
def check(run: Megatron) -> Iterator[Problem]:
    if run.tracker is None and BRIDGE_TRACKER not in run.files:
        yield Problem(
            f"there is no {TRACKER} beside {join_truncated(run.iterations)}: Megatron starts from random weights, "
            "without an error",
            hint="write the number of the iteration to load into it",
        )
