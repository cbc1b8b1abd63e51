"""The reference model of a run was replaced.

## What it checks
Over several files of one run that record their steps, the KL(trainer ‖ reference) of k3:

- At a step after 0 not every logprob of the two is equal bit for bit, over at least 64 tokens.
- The KL does not fall to a tenth between two steps and stay there, nor rise tenfold while the trainer's own logprobs stay where
  they are. Two steps on each side have to agree.

## Why it matters
A reference that is captured after a checkpoint was loaded is the resumed policy. The KL begins at 0 again, and each resume gives
the policy a fresh budget to drift: the penalty no longer holds it near the model that was meant. A KL that rises at once, without
the policy, comes from a reference that was loaded wrongly or not at all.

## How to fix
Load the base weights, capture the reference, and only then load the checkpoint. Compare the two models with `ckptcheck diff`.

## When it can be wrong
The reference is replaced on purpose, every so many steps (TRL `sync_ref_model`). Step 1 may be equal where the warm-up begins with
a learning rate of 0; the rule allows that.

## Seen in
NVIDIA-NeMo/RL#3722, #2955 (the curve of `train/kl_penalty` falls to 0 at each resume), #3048
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import fmean

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.metrics.reference_gap import ReferenceGap
from ckptcheck.rollouts.series import RolloutSeries

LEAST = 64
"""Tokens below which equality may be chance."""
JUMP = 10.0
"""How many times the KL changes from one step to the next. The curve of NeMo-RL#2955 falls by more; from step to step that of a
sound run changes by less than a factor of two."""
SIDE = 2
"""Steps on each side that have to agree."""
SHOWN = 4
"""Steps that the message names."""
HINT = "capture the reference from the base weights before a checkpoint is loaded"


@rule(
    "PAR047",
    "replaced-reference",
    severity="error",
    on="rollout-series",
    when=lambda series: any(member.reference is not None for member in series.members),
)
def check(series: RolloutSeries) -> Iterator[Problem]:
    gaps = series.references
    if len(gaps) < 2:
        raise Skip("fewer than two steps have logprobs of the trainer and of the reference")
    equal = [step for step, gap in gaps.items() if step > 1 and gap.tokens >= LEAST and not gap.abs_max]
    if equal:
        listed = f"step{'s' if len(equal) > 1 else ''} {', '.join(map(str, equal[:SHOWN]))}"
        listed += f" and {len(equal) - SHOWN:,} more" if len(equal) > SHOWN else ""
        text = f"the reference equals the trainer bit for bit at {listed}: "
        before = [(step, gap.kl) for step, gap in gaps.items() if step < equal[0] and gap.abs_max]
        if before:
            text += f"it was replaced; at step {before[-1][0]} the KL was {before[-1][1]:.3g} nats a token"
        elif all(not gap.abs_max for gap in gaps.values()):
            text += "it is the trained model itself, or training does not move the weights"
        else:
            text += "it was replaced"
        yield Problem(text, key=f"step {equal[0]}", hint=HINT)
    elif (jump := _find_jump(gaps)) is not None:
        step, before_kl, kl = jump
        verb = "falls" if kl < before_kl else "rises"
        cause = (
            "the reference was replaced by a later policy"
            if kl < before_kl
            else "the trainer's own logprobs stay where they are, so the reference is another model"
        )
        yield Problem(
            f"the KL to the reference {verb} from {before_kl:.3g} to {kl:.3g} nats a token at step {step}, and stays there:"
            f" {cause}",
            key=f"step {step}",
            hint=HINT,
        )


def _find_jump(gaps: Mapping[int, ReferenceGap]) -> tuple[int, float, float] | None:
    """Return the step of the first jump, and the mean KL of the steps before and after it; None where there is no jump."""
    steps = list(gaps)
    for place, (_, step) in enumerate(pairwise(steps), 1):
        before = [gaps[each] for each in steps[max(0, place - SIDE - 1) : place]]
        after = [gaps[each] for each in steps[place : place + SIDE + 1]]
        if min(len(before), len(after)) < SIDE:
            continue
        old, new = [gap.kl for gap in before], [gap.kl for gap in after]
        falls = max(new) * JUMP < min(old)
        moved = [
            abs(fmean(getattr(gap, name) for gap in after) - fmean(getattr(gap, name) for gap in before))
            for name in ("policy_mean", "reference_mean")
        ]
        # early in training the KL rises many times over; then it is rising before, too
        rises = min(new) > max(old) * JUMP and max(old) < 3 * min(old) and moved[1] > 5 * moved[0]
        if falls or rises:
            return step, fmean(old), fmean(new)
    return None
