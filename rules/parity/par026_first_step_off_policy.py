"""The reference model is not the model with which training began.

## What it checks
At step 0, before any training, trainer and reference model hold the same weights: their logprobs have to be equal, and the KL is
0. The rule allows 1e-8 nats, as slime's CI does.

At a later step they hold different weights: of at least 64 tokens not every logprob may be equal bit for bit. In several files of
one run PAR047 checks this.

## Why it matters
The KL penalty pulls towards a reference that is not where training started. At step 0 either one of the two was loaded or
converted wrongly, or the trainer's kernels are not deterministic and every ratio of the run has that noise. Later the reference
was captured after a checkpoint was loaded: each resume moves it, and the penalty holds nothing.

## How to fix
At step 0: compare both with `ckptcheck diff`, then force deterministic attention (`--attention-backend flash` in Megatron).
Later: load the base weights, capture the reference, and only then load the checkpoint.

## When it can be wrong
You want the reference to be another model than the trained one, or replace it on purpose. Step 1 alone is a warning: where the
warm-up begins with a learning rate of 0, the first update changes nothing.

## Seen in
slime docs/en/developer_guide/debug.md, first training step; NVIDIA-NeMo/RL#3722, #2955 (the reference is the resumed checkpoint)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

SAME = 1e-8
ROUNDING = 1e-2
"""Mean |difference| in nats below which other kernels can be the reason: bfloat16 rounds logprobs by less."""
LEAST = 64
"""Tokens below which equality may be chance."""


@rule(
    "PAR026",
    "first-step-off-policy",
    severity="error",
    on="rollouts",
    when=lambda evidence: (
        evidence.rollouts.metadata.step is not None
        and (evidence.rollouts.metadata.step == 0 or evidence.is_alone)
        and {"trainer_logprobs", "reference_logprobs"} <= evidence.rollouts.columns.keys()
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    gap, step = evidence.reference_gap, evidence.rollouts.metadata.step
    if gap is None:
        raise Skip("no token could be compared")
    if step == 0 and gap.abs_max > SAME:
        text = f"the trainer and the reference model differ by up to {gap.abs_max:.3g} nats "
        text += f"(mean {gap.abs_mean:.3g}) at step 0, "
        text += "where both hold the same weights"
        hint = "ckptcheck diff of the two checkpoints shows whether their weights differ"
        if gap.abs_mean < ROUNDING:
            hint = f"run one of them twice: kernels may not repeat themselves (--attention-backend flash); if they do, {hint}"
        yield Problem(text, key=gap.place, hint=hint)
    elif step and gap.tokens >= LEAST and not gap.abs_max:
        yield Problem(
            f"the reference equals the trainer bit for bit at step {step}, over {count(gap.tokens, 'token')}: it was replaced, or"
            " training does not move the weights",
            severity="warning" if step == 1 else None,
            hint="capture the reference from the base weights before a checkpoint is loaded",
        )
