"""The trainer took a step, and sent exactly what it had sent before.

## What it checks
Where the step (or, without steps, the loss) moved on, the digest of at least one sent tensor changed; where it is not known what
was sent, that of at least one tensor of the engine.

## Why it matters
What is exported is not what is trained: a frozen copy, the base model of an adapter, a buffer that was gathered once. The engine
then samples from the first policy for ever.

## How to fix
Export from the parameters that the optimizer updates; merge the adapter before it is sent.

## When it can be wrong
A first step with a learning rate of 0 (warm-up), or a step that was skipped for an overflow, changes nothing. From three such
steps in a row on it is HIS003.

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History
from ckptcheck.history.runs import frozen


@rule("HIS002", "nothing-changed", severity="warning", on="history", when=lambda history: bool(history.steps))
def check(history: History) -> Iterator[Problem]:
    for run in frozen(history):
        if len(run) < 3:
            for turn in run:
                side, number = turn.same or ("", 0)
                what = "were sent as they were" if side == "sent" else "of the engine are as they were"
                yield Problem(
                    f"{history.name(turn.index)}: all {number:,} tensors {what} at {history.name(turn.earlier)}",
                    hint="was the learning rate 0, or the step skipped? else export what the optimizer updates",
                )
