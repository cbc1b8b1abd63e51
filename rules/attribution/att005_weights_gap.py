"""The engine does not compute with the trainer's weights.

## What it checks
Tensors are compared byte by byte, and the engine is started cold from the trainer's weights: the gap goes.

## Why it matters
It samples from a policy that nobody trains.

## How to fix
`ckptcheck refit` names what the sync lost and why, `ckptcheck diff` what a conversion did, `ckptcheck parity localize` the first
module that differs.

## When it can be wrong
A share is of the excess over the floor, of a mean over tokens. Two causes that act on the same tokens share
it in the order of the ladder.

## Seen in
NVIDIA-NeMo/RL#3259, sgl-project/sglang#27718
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT005",
    "weights-gap",
    severity="error",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("weights")
