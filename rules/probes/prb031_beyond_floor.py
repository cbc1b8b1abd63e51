"""A cell of the matrix is many times the floor of the same pair with equal weights.

## What it checks
With `--calibrate` ckptcheck first measures the gap of short prompts with equal weights; `--floor` reads it from a file. A cell's
mult_prob_error may exceed 1 by at most five times as much (`--max-floor-multiple`), or by less than 0.0001, which float32 can
reach over long prompts. Where PRB030 reports the cell, this rule is silent about it.

## Why it matters
A limit for all models is too wide for a good one. A pair that agrees to six digits on short prompts and to two on long ones has a
fault of its own, long before 1.05.

## How to fix
Find out what the failing cells have in common, and probe that.

## When it can be wrong
Sampling reaches less likely tokens than greedy decoding, and their logprobs are less exact.

## Seen in
NovaSky-AI/SkyRL#1862, where a floor of 0.0118 told a fault of 0.0279 from rounding
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.matrix.trace import MatrixTrace

SMALL = 1e-4


@rule("PRB031", "beyond-floor", severity="warning", on="matrix", when=lambda trace: bool(trace.floor))
def check(trace: MatrixTrace) -> Iterator[Problem]:
    for (row, pair), value in trace.values.items():
        if not value.error <= trace.thresholds.mult_prob_error:
            continue  # PRB030's matter, and so is what is not finite
        measured = trace.floor_of(row, pair)
        floor = (float("inf") if measured is None else measured) - 1
        excess = value.error - 1
        if excess > max(trace.thresholds.floor * floor, SMALL):
            times = f"{excess / floor:.1f} times" if floor else "more than any multiple of"
            yield Problem(
                f"{pair}, {row}: mult_prob_error {value.error:.7g} is {times} the floor of {1 + floor:.7g}",
                hint="ckptcheck parity probe tells causes apart",
            )
