"""The answer of the update call does not match what the engine holds.

## What it checks
- An update that reports success wrote every weight.
- An update that reports failure wrote no weight.
- The rule reports every failed update, also when the trial does not compare weights
  (`--no-check-weight-update-equal`).

## Why it matters
- Training code believes the answer. A false success stays unnoticed. After a false failure the job sends the weights
  again or throws the step away.

## How to fix
- Compare digests instead of answers, and report the fault to the engine's authors.

## When it can be wrong
- SGLang answers False to an update with `in_place` pauses (`--pause in_place`) when it cannot flush its cache; the
  weights are written. This does no harm if your job reads the answer that way. It does harm if your job sends again
  or gives up the step.

## Seen in
sgl-project/sglang#26032 (HTTP 200), SGLang 0.5.23 (`(True, 'Success')` for tensors that it dropped)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import wrong_references


@rule(
    "REF009",
    "untrue-answer",
    severity="error",
    on="refit",
    when=lambda trace: bool(trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        # where the cold load's checkpoint is wrong, nothing tells whether the engine is
        is_wrong = sync.has_unwritten_parameter or (sync.has_wrong_parameter and not wrong_references(trace, sync))
        if sync.answer.ok and is_wrong:
            yield Problem(f"sync {sync.number} reported success, but the engine holds other weights than were sent")
        elif not sync.answer.ok and sync.manifest and not is_wrong:
            yield Problem(f"sync {sync.number} reported failure ({sync.answer.message}), but it wrote all weights")
        elif not sync.answer.ok:
            yield Problem(f"sync {sync.number} failed: {sync.answer.message}")
        else:
            continue
        return
    if not any(sync.manifest for sync in trace.syncs):
        raise Skip("every update reported success, and the trial did not compare weights")
