"""The engine does not compute with the trainer's weights.

## What it checks
ckptcheck compares the tensors of both sides byte by byte. Where they differ, it starts the engine again from the trainer's
weights, and the gap vanishes.

## Why it matters
The engine samples from a policy that nobody trains.

## How to fix
- `ckptcheck refit` names what the sync lost and why.
- `ckptcheck diff` names what a conversion changed.
- `ckptcheck parity localize` names the first module whose output differs.

## When it can be wrong
The share in the message is a share of the mean |Δ| over tokens above the floor. Where two causes act on the same tokens, the
experiment that runs first gets their common share.

## Seen in
NVIDIA-NeMo/RL#3259, sgl-project/sglang#27718
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT005",
    "weights-gap",
    severity="error",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("weights")
