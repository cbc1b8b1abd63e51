"""At step 0 the trainer and the reference model do not agree.

## What it checks
At step 0, before any training, trainer and reference model hold the same weights: their logprobs have to be equal, and the KL is
0. The rule allows 1e-8 nats, as slime's CI does.

## Why it matters
The KL penalty pulls towards a reference that is not where training started. Either one of the two was loaded or converted
wrongly, or the trainer's kernels are not deterministic and every ratio of the run has that noise.

## How to fix
Compare both with `ckptcheck diff`, then force deterministic attention (`--attention-backend flash` in Megatron).

## When it can be wrong
You want the reference to be another model than the trained one.

## Seen in
slime docs/en/developer_guide/debug.md, first training step
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

SAME = 1e-8


@rule(
    "PAR026",
    "first-step-off-policy",
    severity="error",
    on="rollouts",
    when=lambda evidence: (
        evidence.is_well_formed
        and evidence.rollouts.metadata.step == 0
        and {"trainer_logprobs", "reference_logprobs"} <= evidence.rollouts.columns.keys()
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics = compute_metrics(evidence.rollouts, "trainer", "reference")
    if metrics is None:
        raise Skip("no token could be compared")
    if metrics.abs_max > SAME:
        place = metrics.worst[0]
        text = f"the trainer and the reference model differ by up to {metrics.abs_max:.3g} nats "
        text += f"(mean {metrics.abs_mean:.3g}) at step 0, "
        text += "where both hold the same weights"
        yield Problem(
            text,
            key=f"sequence {place.sequence}, token {place.position}",
            hint="ckptcheck diff of the two checkpoints shows whether their weights differ",
        )
