"""The trainer sent the same weights for several steps.

## What it checks
- No three steps in a row sent exactly the same digests. If the record does not say what was sent, no three steps in a
  row left the whole engine unchanged.

## Why it matters
- As in HIS002, but a warm-up no longer explains it: the loss moves, the trainer's weights move, and the weights it
  sends do not.

## How to fix
- Export the parameters that the optimizer updates. Merge the adapter before you send it.

## When it can be wrong
- A job may evaluate and sync without training. Give its syncs no step.

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, find_unchanged_runs


@rule("HIS003", "frozen-payload", severity="error", on="history", when=lambda history: len(history.step_pairs) > 2)
def check(history: History) -> Iterator[Problem]:
    for run in find_unchanged_runs(history):
        if len(run) >= 3:
            side, number = run[-1].unchanged_side or ("", 0)
            description = (
                f"the trainer sent all {number:,} tensors unchanged"
                if side == "sent"
                else f"all {number:,} tensors of the engine stayed unchanged"
            )
            losses = [pair.after.loss for pair in run if pair.after.loss is not None]
            loss_note = f", while the loss went from {losses[0]:g} to {losses[-1]:g}" if len(set(losses)) > 1 else ""
            yield Problem(
                f"from {history.label(run[0].before_index)} to {history.label(run[-1].index)}, {description}{loss_note}",
                hint="export what the optimizer updates; merge an adapter before it is sent",
            )
