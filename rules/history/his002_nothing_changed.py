"""The trainer took a step and sent the same weights as before.

## What it checks
- If the step (or, without steps, the loss) moved on, the digest of at least one sent tensor changed.
- If the record does not say what was sent, at least one tensor of the engine changed.

## Why it matters
- The job exports something else than it trains: a frozen copy, the base model of an adapter, or a buffer that was
  gathered once. The engine then samples from the first policy for ever.

## How to fix
- Export the parameters that the optimizer updates. Merge the adapter before you send it.

## When it can be wrong
- A first step with a learning rate of 0 (warm-up), or a step that was skipped for an overflow, changes nothing.
  HIS003 reports three such steps in a row.

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, find_unchanged_runs


@rule("HIS002", "nothing-changed", severity="warning", on="history", when=lambda history: bool(history.step_pairs))
def check(history: History) -> Iterator[Problem]:
    for run in find_unchanged_runs(history):
        if len(run) < 3:
            for pair in run:
                side, number = history.find_unchanged_side(pair) or ("", 0)
                since = history.label(pair.before_index)
                yield Problem(
                    f"{history.label(pair.index)}: "
                    + (
                        f"the trainer sent all {number:,} tensors as at {since}"
                        if side == "sent"
                        else f"all {number:,} tensors of the engine are as at {since}"
                    ),
                    hint="was the learning rate 0, or the step skipped? otherwise export what the optimizer updates",
                )
