"""The gap is many times what this model has with equal weights.

## What it checks
With `--floor`: mult_prob_error (less 1), k3, mean |Δ| and the mean difference of probabilities, each as a multiple of the
floor (`--max-floor-multiple`, 5). k3 grows with the square of the gap, so its root is compared.

## Why it matters
What is healthy for a model in bfloat16 is broken for one in float32. Thresholds that hold for all models let small faults
of precise ones pass: one stale layer can stay under 1.05.

## How to fix
Nothing in the arithmetic explains it: look at weights, caches, semantics.

## When it can be wrong
A floor that was measured over shorter sequences, in another dtype or with another engine is another floor: PAR033 says so
where the files tell.

## Seen in
NovaSky-AI/SkyRL#1862 (a floor of 0.0118, and 0.0279 without matching fake quantization)
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.metrics.floor import COMPARED
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import older


@rule(
    "PAR023",
    "beyond-floor",
    severity="error",
    on="rollouts",
    when=lambda judged: judged.scored and judged.floor is not None,
)
def check(judged: Judged) -> Iterator[Problem]:
    found, floor = judged.gap, judged.floor
    assert floor is not None
    worst = []
    for name in COMPARED:
        value = getattr(found, name)
        times = floor.multiple(name, value)
        if times is not None and not times <= judged.gates.floor:
            worst.append((times, name, value))
        elif times is None and name in floor.metrics and value > floor.metrics[name]:
            worst.append((inf, name, value))
    if worst:
        told = ", ".join(
            f"{name} {value:.4g} ({times:.3g} times)" for times, name, value in sorted(worst, key=lambda each: -each[0])
        )
        text = f"beyond {judged.gates.floor:g} times the floor of equal weights: {told}"
        yield Problem(
            text + older(judged), hint="the arithmetic does not explain it: look at weights, caches, semantics"
        )
