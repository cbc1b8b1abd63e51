"""The gap between engine and trainer is above a limit, or many times the floor of equal weights.

## What it checks
Over the compared tokens:

- mult_prob_error, the mean of exp|trainer - engine|, which is 1 where both agree: at most 1.05, `--set max-mult-prob-error`.
- The KL by the k3 estimate and, where full-vocabulary logprobs are recorded, the exact KL in both directions: at most 0.01,
  `--set max-kl`.
- The mean of |e^trainer - e^engine|, as verl logs it: at most 0.01, `--set max-prob-diff`; else a warning, and an info up to
  half as much again where nothing else is beyond its limit.
- With `--set max-abs`, the mean of |trainer - engine| in nats; slime and miles allow 0.1 in CI; else a warning.

With `--floor`, each may also be at most 5 times the floor (`--set max-floor-multiple`); of mult_prob_error that is the excess
over 1. k3 grows with the square of the gap, so the rule compares its root.

Tokens whose gap has a cause that the file shows do not count: those under a wrong mask (PAR007), placeholders (PAR009), shifted
logprobs (PAR028), and outliers with a trait in common (PAR086).

## Why it matters
- The loss treats the engine's samples as the trainer's own, so every gradient contains the difference of the two. NeMo-RL gates new
  models by mult_prob_error.
- Healthy syncs reach a KL of 1e-4 to 1e-3, broken ones 1e-2 and more, up to 5. Importance ratios are clipped, so training goes on
  and learns less.
- verl's documentation calls a difference of probabilities of 0.005 normal, and more than 0.01 a precision issue. The number gives
  weight to tokens that either side is sure of, to which KL and ratios react least.
- A gap that is healthy for a model in bfloat16 is a fault for one in float32. Thresholds that hold for all models let small faults
  of precise models pass: one stale layer can stay under 1.05.

## How to fix
- First mend what other rules name: they list causes, and this is the size of what is left.
- Then run what the hint names: `ckptcheck parity why` as a rule, `ckptcheck preflight` where the file leaves open what its logprobs
  mean.
- Then look at precision: kernels, the output head, the cache. Arithmetic does not explain many times the floor.
- A KL that is large from the first step on comes from weights or semantics; one that grows comes from syncs.

## When it can be wrong
- Engines of lower precision than the trainer (fp8, int4) have a larger error, and so have mixtures of experts: measure the floor
  and give `--floor`.
- The floor was measured over shorter sequences, in another dtype or with another engine. PAR033 reports that where the files
  record it.
- k3 has a heavy tail: one token that the trainer finds 10 nats likelier adds 22,000 to the sum. PAR024 shows whether it is one
  sequence.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md and its nightly gates (1.02 to 1.15); NeMo-RL#4243; sgl-project/sglang#38298 (a KL of 1.5),
prime-rl#2714 (2 to 5), #3543 (0.194); verl docs/faq; volcengine/verl#3894 (0.5 with gpt-oss-20B), OpenClaw-RL#69 (0.2 to 0.4 of
|Δ|); NovaSky-AI/SkyRL#1862 (a floor of 0.0118, and 0.0279 without matching fake quantization)
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_staleness
from ckptcheck.text.formatting import count

GRAVE = ("mult_prob_error", "k3")
"""Metrics whose limit is an error to exceed."""
USUAL = 1.5
"""How many times verl's limit sound mixtures of experts in bfloat16 reach: 0.0118 (SkyRL#1862) to 0.0148 (verl#7242)."""


@rule("PAR020", "gap-beyond-limit", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics, limits, exact = evidence.remaining_gap, evidence.thresholds, evidence.exact_kl
    sides = ("trainer", "engine") if metrics.sampled_by == "trainer" else ("engine", "trainer")
    abs_mean = metrics.abs_mean if limits.abs_mean is None else metrics.abs_sequence_mean
    parts, is_grave, is_beyond_floor = [], False, False
    for name, limit, value, text in (
        (
            "mult_prob_error",
            limits.mult_prob_error,
            metrics.mult_prob_error,
            f"mult_prob_error is {metrics.mult_prob_error:.5g}",
        ),
        ("k3", limits.kl, metrics.k3, f"KL({sides[0]} ‖ {sides[1]}) is {metrics.k3:.3g} nats a token by k3"),
        (
            "prob_diff_mean",
            limits.prob_diff,
            metrics.prob_diff_mean,
            f"probabilities differ by {metrics.prob_diff_mean:.3g} on average",
        ),
        ("abs_mean", limits.abs_mean, abs_mean, f"logprobs differ by {abs_mean:.3g} nats on average"),
    ):
        times = _compute_floor_multiple(evidence, name)
        exceeds_limit = limit is not None and not value <= limit
        exceeds_floor = times is not None and not times <= limits.floor
        if exceeds_limit or exceeds_floor:
            reasons = [f"limit {limit:g}"] if exceeds_limit else []
            reasons += (
                [] if times is None else [f"{times:.3g} times the floor" if times < inf else "where the floor is 0"]
            )
            parts.append(f"{text} ({', '.join(reasons)})")
        is_grave |= exceeds_floor or (exceeds_limit and name in GRAVE)
        is_beyond_floor |= exceeds_floor
    if metrics.k3 <= limits.kl and exact and not max(exact.engine_trainer, exact.trainer_engine) <= limits.kl:
        is_grave = True
        parts.append(
            f"the exact KL is {exact.engine_trainer:.3g} (engine ‖ trainer) and {exact.trainer_engine:.3g} (trainer ‖ engine)"
            f" nats over {count(exact.positions, 'position')} (limit {limits.kl:g}), although the sampled tokens give"
            f" {metrics.k3:.3g}: the sides differ in tokens that were not sampled"
        )
    is_usual = len(parts) == 1 and limits.prob_diff < metrics.prob_diff_mean <= USUAL * limits.prob_diff
    known = evidence.causes.known_tokens
    left_out = f", without {known:,} whose cause is known" if known else ""
    if parts:
        yield Problem(
            f"over {count(metrics.tokens, 'token')}{left_out}: {'; '.join(parts)}{describe_staleness(evidence)}",
            hint="arithmetic does not explain such a gap: look at weights, caches and semantics"
            if is_beyond_floor
            else _choose_next_command(evidence),
            severity=None if is_grave else "info" if is_usual else "warning",
        )


def _compute_floor_multiple(evidence: RolloutEvidence, name: str) -> float | None:
    """Return how many times the floor a metric is; infinite where the floor of a gap is 0, None where there is no floor."""
    floor, value = evidence.floor, getattr(evidence.remaining_gap, name)
    if floor is None or name not in floor.metrics:
        return None
    times = floor.multiple(name, value)
    return times if times is not None or value <= floor.metrics[name] else inf


def _choose_next_command(evidence: RolloutEvidence) -> str:
    """Return a hint: the reason and one command. The evidence has a gap beyond its limits, and no cause is known."""
    metadata = evidence.rollouts.metadata
    temperature = metadata.sampling.temperature
    if metadata.logprobs == "unknown" and temperature not in (None, 0, 1):
        return (
            f"the file does not say whether logprobs are divided by the temperature {temperature:g}: ckptcheck preflight JOB"
            " says what both sides compute"
        )
    return (
        f"nothing in the file names a cause: ckptcheck parity why {evidence.target} {metadata.model or 'MODEL'} tries causes one"
        " after the other"
    )
