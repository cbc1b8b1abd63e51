"""The sync did not write a tensor of the engine.

## What it checks
- Before the first sync, the trial fills every parameter of the engine with marks.
- After the first sync, no parameter may consist of marks only.
- A table in the report lists the parameters that the trial could not mark.

## Why it matters
- The engine keeps the values it had before. In a training job those are the weights of the previous step.
- Nothing crashes and no call fails. The engine does not sample from the policy in training, and the KL grows from step
  to step.

## How to fix
- The message says whether what was sent arrived at the engine's `load_weights`: if not, the transport lost it.
- Send the tensor under the name that the engine's loader expects.

## When it can be wrong
- A parameter that no checkpoint holds and that the engine fills itself at start keeps its marks. Please report it to
  us.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers under pipeline parallelism)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.delivery import describe_arrival, describe_delivery
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.trace_queries import iter_unwritten_parts, why_not_scrambled
from ckptcheck.live.refit.weight_names import describe_origin, describe_ranks
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF001",
    "unwritten-tensor",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync, unwritten in iter_unwritten_parts(trace):
        whole = {key for key, part in unwritten.items() if part.sentinel_count == part.total}
        names = sorted({name for _, name in whole})
        if not names:
            continue
        subject = "the sync" if sync.number == 1 else f"sync {sync.number}, which sent the same values once more,"
        answer = "reported success" if sync.answer.ok else f"said: {sync.answer.message}"
        yield Problem(
            f"{subject} did not write {count(len(names), 'tensor')}: {join_truncated(names)}; the update call {answer}"
            + describe_origin(trace, names)
            + (describe_ranks(trace, whole) or describe_delivery(trace, sync, names))
            + describe_arrival(trace, sync, whole, was_skipped=True),
            key=names[0],
            hint="send it, under a name that the engine's loader knows",
            names=tuple(names),
        )
    if reason := why_not_scrambled(trace):
        raise Skip(reason)
