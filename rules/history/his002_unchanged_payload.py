"""The trainer took steps and sent the same weights as before.

## What it checks
- If the step (or, without steps, the loss) moved on, the digest of at least one sent tensor changed.
- If the record does not say what was sent, at least one tensor of the engine changed.
- One or two steps in a row without a change are a warning, three or more an error.
- Where the watch knows the trainer's parameters (TRL) and they did not change either, three or more are a warning, and fewer
  nothing: the sync did what it should.

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
        if any(pair.after.trained or pair.after.is_empty or pair.after.is_merged_wrong for pair in run):
            continue  # HIS025 says that the trainer has other values, HIS014 that nothing was sent
        if run[0].after.trained is None or len(run) >= LASTING:
            yield _describe_run(history, run)


def _describe_run(history: History, run: Sequence[SyncPair]) -> Problem:
    side, number = history.find_unchanged_side(run[0]) or ("", 0)
    since = history.label(run[0].before_index)
    is_still = run[0].after.trained is not None
    description = f"the trainer sent all {number:,} tensors as at {since}"
    if side == "held":
        description = f"all {number:,} tensors of the engine are as at {since}"
    elif is_still:
        description += ", because its own parameters did not change"
    losses = [pair.after.loss for pair in run if pair.after.loss is not None]
    loss_note = f", while the loss went from {losses[0]:g} to {losses[-1]:g}" if len(set(losses)) > 1 else ""
    hint = "was the learning rate 0, or the step skipped? if not, export what the optimizer updates"
    if is_still:
        hint = "look at the gradients, the learning rate, and whether the optimizer has these parameters"
    elif len(run) >= LASTING:
        hint = "export what the optimizer updates; merge an adapter before it is sent"
    return Problem(
        f"{history.label(run[0].index)}: {description}{loss_note}{history.describe_lasting([pair.index for pair in run])}",
        hint=hint,
        severity="error" if len(run) >= LASTING and not is_still else "warning",
        names=tuple(run[0].after.held if side == "held" else run[0].after.sent),
    )
