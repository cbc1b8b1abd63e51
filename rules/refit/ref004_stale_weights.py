"""The engine still holds the weights of an earlier step.

## What it checks
After a sync that follows a step of the trainer, no tensor that the step changed has the bytes it had after the sync before.

## Why it matters
Staleness looks like being off-policy: importance ratios drift, ESS falls, and people tune the algorithm. One team spent two
months on that.

## How to fix
Look for what restores or skips the tensor from the second sync on: a loader that was replaced, a bucket that finalizes layers
which it does not hold, an adapter that is pushed without its base.

## When it can be wrong
A tensor that the trainer did not change is no concern of this rule: it must differ from the cold load too.

## Seen in
volcengine/verl#7495, NovaSky-AI/SkyRL#1737, OpenRLHF/OpenRLHF#1349
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.judging import stale
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF004",
    "stale-weights",
    severity="error",
    on="refit",
    when=lambda trace: len(trace.syncs) > 1 and bool(trace.syncs[1].manifest),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs[1:]:
        names = sorted({name for _, name in stale(trace, sync)})
        if names:
            yield Problem(
                f"after sync {sync.number} {count(len(names), 'tensor is', 'tensors are')} still of an earlier step: {few(names)}"
                + origin(trace, names),
                key=names[0],
                hint="find what skips or restores it from the second sync on",
            )
            return
