"""The gap is rounding: it vanishes in float32.

## What it checks
The output head, and then the whole model, compute in float32: on either side alone, and on both.

## Why it matters
It is not a bug of a sync, and both sides mean the same by a logprob. But it grows with length and depth, and it makes
importance ratios large.

## How to fix
- Compute the output head in float32 on both sides.
- Or use float16 instead of bfloat16, or the same kernels on both sides.
- Or correct for it in the objective.

## When it can be wrong
- The share in the message is a share of the mean |Δ| over tokens above the floor. Where two causes act on the same tokens, the
  experiment that runs first gets their common share.
- float32 on one side alone can make a gap larger; then only float32 on both sides counts.

## Seen in
arXiv:2510.26788 (float16 against the training-inference mismatch), arXiv:2506.13585 (MiniMax-M1: the head in float32)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT003",
    "precision-gap",
    severity="warning",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("precision")
