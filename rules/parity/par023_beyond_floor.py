"""The gap is many times the gap that this model has with equal weights.

## What it checks
With `--floor`: mult_prob_error (less 1), k3, the mean |Δ| and the mean difference of probabilities, each as a multiple of the
floor (at most `--max-floor-multiple`, 5). k3 grows with the square of the gap, so the rule compares its root.

## Why it matters
A gap that is healthy for a model in bfloat16 is a fault for one in float32. Thresholds that hold for all models let small faults
of precise models pass: one stale layer can stay under 1.05.

## How to fix
Arithmetic does not explain such a gap: look at weights, caches and semantics.

## When it can be wrong
The floor was measured over shorter sequences, in another dtype or with another engine. PAR033 reports that where the files
record it.

## Seen in
NovaSky-AI/SkyRL#1862 (a floor of 0.0118, and 0.0279 without matching fake quantization)
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.rollouts.metrics.noise_floor import COMPARED
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_staleness


@rule(
    "PAR023",
    "beyond-floor",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and evidence.floor is not None,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics, floor = evidence.metrics, evidence.floor
    if floor is None:
        return
    excesses = []
    for name in COMPARED:
        value = getattr(metrics, name)
        times = floor.multiple(name, value)
        if times is not None and not times <= evidence.thresholds.floor:
            excesses.append((times, name, value))
        elif times is None and name in floor.metrics and value > floor.metrics[name]:
            excesses.append((inf, name, value))
    if excesses:
        metric_list = ", ".join(
            f"{name} {value:.4g} ({times:.3g} times)"
            for times, name, value in sorted(excesses, key=lambda item: -item[0])
        )
        text = f"beyond {evidence.thresholds.floor:g} times the floor of equal weights: {metric_list}"
        yield Problem(
            text + describe_staleness(evidence),
            hint="arithmetic does not explain such a gap: look at weights, caches and semantics",
        )
