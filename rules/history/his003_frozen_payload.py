"""The trainer has sent the same numbers for several steps.

## What it checks
No three steps in a row sent exactly the same digests, or left all of the engine as it was, where it is not known what was sent.

## Why it matters
As HIS002, and no warm-up explains it any more: the loss moves, the trainer's weights move, and what is sent does not.

## How to fix
Export from the parameters that the optimizer updates; merge the adapter before it is sent.

## When it can be wrong
A job that evaluates and syncs without training. Give no step to its syncs then.

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History
from ckptcheck.history.runs import frozen


@rule("HIS003", "frozen-payload", severity="error", on="history", when=lambda history: len(history.steps) > 2)
def check(history: History) -> Iterator[Problem]:
    for run in frozen(history):
        if len(run) >= 3:
            side, number = run[-1].same or ("", 0)
            what = "were sent with the same numbers" if side == "sent" else "of the engine stayed as they were"
            losses = [turn.after.loss for turn in run if turn.after.loss is not None]
            moved = f", while the loss went from {losses[0]:g} to {losses[-1]:g}" if len(set(losses)) > 1 else ""
            yield Problem(
                f"from {history.name(run[0].earlier)} to {history.name(run[-1].index)} all {number:,} tensors {what}{moved}",
                hint="export what the optimizer updates; merge an adapter before it is sent",
            )
