"""A tensor of the engine was not written by the sync.

## What it checks
Every parameter that was overwritten with marks before the first sync holds none afterwards. The report lists those that could
not be overwritten.

## Why it matters
The engine goes on with what it had. In a job it had the weights of the step before, so nothing crashes, no call fails, and the
engine samples from a model that nobody trains: KL grows from step to step.

## How to fix
Send the tensor, under the name that the engine's loader knows. Draft and MTP models need an update of their own.

## When it can be wrong
A parameter that no checkpoint holds, and that the engine fills itself at start, keeps its mark; report it to us.

## Seen in
NVIDIA-NeMo/RL#3259 (half of the layers under pipeline parallelism), sgl-project/sglang#27718 (draft models)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.names import origin
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.unseen import unmarked


@rule(
    "REF001",
    "unwritten-tensor",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    first = trace.syncs[0]
    whole = {key: left for key, left in first.leftovers.items() if left.count == left.total}
    if whole:
        names = sorted({name for _, name in whole})
        said = "reported success" if first.answer.ok else f"said: {first.answer.message}"
        yield Problem(
            f"{count(len(names), 'tensor was', 'tensors were')} not written by the sync: {few(names)}; the update call {said}"
            + origin(trace, names),
            key=names[0],
            hint="send it, under a name that the engine's loader knows",
        )
    if why := unmarked(trace):
        raise Skip(why)
