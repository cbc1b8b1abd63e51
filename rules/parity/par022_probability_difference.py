"""Probabilities differ by more than precision explains.

## What it checks
- The mean of |e^trainer - e^engine|, as verl logs it, is at most 0.01 (`--max-prob-diff`).
- With `--max-abs`, also the mean of |trainer - engine| in nats. slime and miles allow 0.1 in CI.

## Why it matters
verl's documentation calls 0.005 normal, and more than 0.01 a precision issue. The number gives weight to tokens that either side
is sure of, to which KL and ratios react least.

## How to fix
As for PAR020.

## When it can be wrong
The engine has lower precision than the trainer: measure the floor and give `--floor`.

## Seen in
verl docs/faq; volcengine/verl#3894 (0.5 with gpt-oss-20B), OpenClaw-RL#69 (0.2 to 0.4 of |Δ|)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_staleness


@rule(
    "PAR022", "probability-difference", severity="warning", on="rollouts", when=lambda evidence: evidence.has_both_sides
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics, gates = evidence.metrics, evidence.thresholds
    if not metrics.prob_diff_mean <= gates.prob_diff:
        times = evidence.format_floor_multiple("prob_diff_mean", metrics.prob_diff_mean)
        text = f"probabilities differ by {metrics.prob_diff_mean:.3g} on average{times}, and the limit is {gates.prob_diff:g}"
        yield Problem(text + describe_staleness(evidence), hint="do what PAR020 says (ckptcheck rule PAR020)")
    if gates.abs_mean is not None and not metrics.abs_sequence_mean <= gates.abs_mean:
        times = evidence.format_floor_multiple("abs_mean", metrics.abs_sequence_mean)
        text = f"logprobs differ by {metrics.abs_sequence_mean:.3g} nats on average{times}, and the limit is {gates.abs_mean:g}"
        yield Problem(text + describe_staleness(evidence), hint="do what PAR020 says (ckptcheck rule PAR020)")
