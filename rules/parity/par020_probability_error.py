"""The multiplicative probability error is above its limit.

## What it checks
The mean of exp|trainer - engine| over the compared tokens; it is 1 where both agree. Limit: 1.05, `--max-mult-prob-error`.

## Why it matters
The loss treats the engine's samples as the trainer's own, so every gradient contains what the two disagree in. NeMo-RL gates new
models by this number.

## How to fix
- First look at what other rules say: shift, temperature, placeholders, stale tokens.
- Then compare the weights (`ckptcheck refit`).
- Then look at precision: kernels, the output head, the cache.

## When it can be wrong
Engines of lower precision than the trainer (fp8, int4) have a larger error, and so have mixtures of experts: measure the floor
and give `--floor`.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md and its nightly gates (1.02 to 1.15); NeMo-RL#4243
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_staleness
from ckptcheck.text.formatting import count


@rule("PAR020", "probability-error", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics, gate = evidence.metrics, evidence.thresholds.mult_prob_error
    if not metrics.mult_prob_error <= gate:
        text = f"mult_prob_error is {metrics.mult_prob_error:.5g} over {count(metrics.tokens, 'token')}"
        text += (
            evidence.format_floor_multiple("mult_prob_error", metrics.mult_prob_error)
            + f", and the limit is {gate:g}"
            + describe_staleness(evidence)
        )
        yield Problem(text, hint="ckptcheck refit shows whether the weights are the cause")
