"""The trainer took steps and sent the same weights as before.

## What it checks
- If the step (or, without steps, the loss) moved on, the digest of at least one sent tensor changed.
- If the record does not say what was sent, at least one tensor of the engine changed.
- One or two steps in a row without a change are a warning, three or more an error.

## Why it matters
- The job exports something else than it trains: a frozen copy, the base model of an adapter, or a buffer that was
  gathered once. The engine then samples from the first policy for ever.
- After three steps a warm-up no longer explains it: the loss moves, the trainer's weights move, and the weights it sends do not.

## How to fix
- Export the parameters that the optimizer updates. Merge the adapter before you send it.

## When it can be wrong
- A first step with a learning rate of 0 (warm-up), or a step that was skipped for an overflow, changes nothing.
- A job may evaluate and sync without training. Give its syncs no step.

## Seen in
volcengine/verl#7495 (the base weights pushed at every sync for two months)
"""

from collections.abc import Iterator, Sequence

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History, SyncPair, find_unchanged_runs

LASTING = 3
"""Steps in a row from which on a warm-up or a skipped step does not explain it."""


@rule("HIS002", "unchanged-payload", severity="warning", on="history", when=lambda history: bool(history.step_pairs))
def check(history: History) -> Iterator[Problem]:
    for run in find_unchanged_runs(history):
        if len(run) >= LASTING:
            yield _describe_run(history, run)
        else:
            yield from (_describe_step(history, pair) for pair in run)


def _describe_step(history: History, pair: SyncPair) -> Problem:
    side, number = history.find_unchanged_side(pair) or ("", 0)
    since = history.label(pair.before_index)
    return Problem(
        f"{history.label(pair.index)}: "
        + (
            f"the trainer sent all {number:,} tensors as at {since}"
            if side == "sent"
            else f"all {number:,} tensors of the engine are as at {since}"
        ),
        hint="was the learning rate 0, or the step skipped? if not, export what the optimizer updates",
    )


def _describe_run(history: History, run: Sequence[SyncPair]) -> Problem:
    side, number = run[-1].unchanged_side or ("", 0)
    description = (
        f"the trainer sent all {number:,} tensors unchanged"
        if side == "sent"
        else f"all {number:,} tensors of the engine stayed unchanged"
    )
    losses = [pair.after.loss for pair in run if pair.after.loss is not None]
    loss_note = f", while the loss went from {losses[0]:g} to {losses[-1]:g}" if len(set(losses)) > 1 else ""
    return Problem(
        f"from {history.label(run[0].before_index)} to {history.label(run[-1].index)}, {description}{loss_note}",
        hint="export what the optimizer updates; merge an adapter before it is sent",
        severity="error",
    )
