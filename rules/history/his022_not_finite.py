"""The trainer's loss, or the logprobs of a probe, are no finite numbers.

## What it checks
- The loss of each sync, where the job gives it, is neither NaN nor infinite. `ckptcheck gate --first-step` also
  reads the gradient norm.
- Each probe (`Watch(probe=…)`) got a finite logprob for every token from both sides, unless a tensor is NaN (HIS029, HIS008).

## Why it matters
- A step on a loss of NaN makes every weight NaN, and the next sync sends them. The engine then answers with one token for ever, and
  no update fails.

## How to fix
- Go back to a save from before the step that the finding names. Let the trainer skip a step whose loss or gradient is not finite.
- Where only the probe is not finite: `ckptcheck scan` on a save says whether the weights are; if they are, one side overflows.

## When it can be wrong
- A job that gives the loss of an empty batch, a mean over no tokens, and skips that step.

## Seen in
verl-project/verl#637 (no check of the loss or of the weights that vLLM is sent), modelscope/ms-swift#3136 (NaN from some step on)
"""

from collections.abc import Callable, Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.runs.history.record import SyncRecord

KINDS: tuple[tuple[str, Callable[[SyncRecord], bool]], ...] = (
    ("the trainer's loss or gradient is no finite number", lambda sync: sync.not_finite),
    (
        "the logprobs of the fixed tokens are no finite numbers",
        lambda sync: sync.probe is not None and None in (sync.probe.mean, sync.probe.most) and not sync.has_nan,
    ),
)


@rule("HIS022", "not-finite", severity="error", on="history")
def check(history: History) -> Iterator[Problem]:
    for run in dict.fromkeys(sync.run for sync in history.syncs):
        for what, is_met in KINDS:
            found = [index for index, sync in enumerate(history.syncs) if sync.run == run and is_met(sync)]
            if found:
                yield Problem(
                    f"{history.label(found[0])}: {what}{history.describe_lasting(found)}",
                    hint="go back to a save from before it; ckptcheck scan says whether a save's weights are finite",
                )
