"""At step 0 trainer and reference model do not agree.

## What it checks
At step 0, before anything was trained, trainer and reference are the same weights: their logprobs have to be equal, and KL
0. 1e-8 nats are allowed, as in slime's CI.

## Why it matters
The KL penalty pulls towards a reference that is not where training started. Either one of the two was loaded or converted
wrongly, or kernels of the trainer are not deterministic, and every ratio of the run has that noise.

## How to fix
Compare both with `ckptcheck diff`, then force deterministic attention (`--attention-backend flash` in Megatron).

## When it can be wrong
A reference that is meant to be another model than the one trained.

## Seen in
slime docs/en/developer_guide/debug.md, first training step
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.metrics.gap import gap
from ckptcheck.parity.judged import Judged
from ckptcheck.rule import Skip

SAME = 1e-8


@rule(
    "PAR026",
    "first-step-off-policy",
    severity="error",
    on="rollouts",
    when=lambda judged: (
        judged.sound
        and judged.rollouts.metadata.step == 0
        and {"trainer_logprobs", "reference_logprobs"} <= judged.rollouts.columns.keys()
    ),
)
def check(judged: Judged) -> Iterator[Problem]:
    found = gap(judged.rollouts, "trainer", "reference")
    if found is None:
        raise Skip("no token could be compared")
    if found.abs_max > SAME:
        place = found.worst[0]
        text = f"trainer and reference differ by up to {found.abs_max:.3g} nats (mean {found.abs_mean:.3g}) at step 0, "
        text += "where they are the same weights"
        yield Problem(
            text,
            key=f"sequence {place.sequence}, token {place.position}",
            hint="ckptcheck diff of the two checkpoints tells which it is",
        )
