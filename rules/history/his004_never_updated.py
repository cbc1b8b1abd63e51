"""A tensor was sent with the same numbers at every step, while its siblings in other layers changed.

## What it checks
Over three or more steps that changed something, every matrix changed at least once, unless all of its kind stayed the same
(which is how a part of a model is frozen on purpose). Norms and biases are left out, for bf16 may round a step in them to
nothing, and so are single experts, for one that no token is routed to has no gradient.

## Why it matters
It is outside of the optimizer, or a stage of the pipeline exports a copy that nobody updates.

## How to fix
Look for it among the optimizer's parameters, and for what exports it.

## When it can be wrong
Lower layers that were frozen on purpose.

## Seen in
NVIDIA-NeMo/RL#3259 (layers of the second pipeline stage)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History, kind, matrices
from ckptcheck.phrase import count, few

STEPS = 3


@rule(
    "HIS004",
    "never-updated",
    severity="warning",
    on="history",
    when=lambda history: sum(bool(turn.moved) for turn in history.steps) >= STEPS,
)
def check(history: History) -> Iterator[Problem]:
    never = set(history.never)
    alive = {kind(name) for name in history.syncs[-1].sent if name not in never}
    left = sorted(name for name in matrices(never) if kind(name) in alive)
    if left:
        yield Problem(
            f"{count(len(left), 'matrix', 'matrices')} never changed over {count(len(history.steps), 'step')} though others of"
            f" their kind did: {few(left)}",
            key=left[0],
            hint="look for it among the optimizer's parameters",
        )
