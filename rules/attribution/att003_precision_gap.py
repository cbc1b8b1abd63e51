"""The gap is rounding: it vanishes in float32.

## What it checks
The head, and then the whole model, compute in float32 on either side and on both.

## Why it matters
It is no bug of a sync or of a meaning. It grows with length and with depth, and large ratios come from it.

## How to fix
Compute the head in float32 on both sides; use float16, or the same kernels on both; or correct for it in the objective.

## When it can be wrong
A share is of the excess over the floor, of a mean over tokens. Two causes that act on the same tokens share
it in the order of the ladder. float32 on one side alone can make a gap larger; then only both sides together count.

## Seen in
arXiv:2510.26788 (float16 against the training-inference mismatch), arXiv:2506.13585 (MiniMax-M1: the head in float32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT003",
    "precision-gap",
    severity="warning",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("precision")
