"""The engine still holds the weights of an earlier step.

## What it checks
- The trainer takes a step and syncs again. No tensor that the step changed still has the bytes it had after the sync
  before.

## Why it matters
- Stale weights look like off-policy data: importance ratios drift, ESS falls, and people tune the algorithm. One team
  spent two months on that.

## How to fix
- Find what restores or skips the tensor from the second sync on. Known cases: a loader that was replaced, a bucket
  that finalizes layers it does not hold, an adapter that is pushed without its base.

## When it can be wrong
- Never for a tensor that the trainer did not change: the rule reports a tensor only if it also differs from the cold
  load.

## Seen in
volcengine/verl#7495, NovaSky-AI/SkyRL#1737, OpenRLHF/OpenRLHF#1349
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.delivery import describe_arrival
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import stale_parameters
from ckptcheck.live.refit.weight_names import describe_origin, describe_ranks
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF004",
    "stale-weights",
    severity="error",
    on="refit",
    when=lambda trace: len(trace.syncs) > 1 and bool(trace.syncs[1].manifest),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs[1:]:
        stale = stale_parameters(trace, sync)
        names = sorted({name for _, name in stale})
        if names:
            yield Problem(
                f"after sync {sync.number}, {count(len(names), 'tensor still has', 'tensors still have')} the values of an"
                f" earlier step: {join_truncated(names)}"
                + describe_origin(trace, names)
                + describe_ranks(trace, stale)
                + describe_arrival(trace, sync, stale),
                key=names[0],
                hint="find what skips or restores it from the second sync on",
                names=tuple(names),
            )
            return
