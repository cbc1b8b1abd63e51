"""A cell of the matrix is many times the floor that the same pair has under the same weights.

## What it checks
With `--calibrate` the gap of short prompts, decoded one by one, is measured first. A cell's mult_prob_error is above 1 by at
most five times as much, or by less than 0.001.

## Why it matters
A limit for all models is too wide for a good one: a pair that agrees to six digits on short prompts and to two on long ones has a
fault of its own, long before 1.05.

## How to fix
See what the cells that fail have in common, and probe that.

## When it can be wrong
Sampling reaches unlikelier tokens than greedy decoding, whose logprobs are less exact.

## Seen in
NovaSky-AI/SkyRL#1862, where a floor of 0.0118 told a fault of 0.0279 from rounding
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.matrix.trace import MatrixTrace

TIMES, SMALL = 5.0, 1e-3


@rule("PRB031", "beyond-floor", severity="warning", on="matrix", when=lambda trace: bool(trace.floor))
def check(trace: MatrixTrace) -> Iterator[Problem]:
    for (row, pair), value in trace.values.items():
        floor = trace.floor.get(pair, float("inf")) - 1
        excess = value.error - 1
        if excess > max(TIMES * floor, SMALL):
            length, data, decoding, batch = row
            times = f"{excess / floor:.1f} times" if floor else "more than any multiple of"
            yield Problem(
                f"{pair}, {length:,} tokens, {data} data, {decoding}, batch {batch}: mult_prob_error {value.error:.4g} is {times}"
                f" the floor of {1 + floor:.6g}",
                hint="ckptcheck parity probe tells causes apart",
            )
