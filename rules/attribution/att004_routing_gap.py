"""The gap lies at tokens that routers sent to other experts.

## What it checks
In each sequence, tokens are left out from the first one on that went to other experts. The gap of the tokens that remain is at
the floor.

## Why it matters
A token that goes to another expert gets another logprob, far beyond rounding, and trains an expert that did not serve it.

## How to fix
Replay the engine's routing in the trainer (R3), or compute the routers in float32 on both sides.

## When it can be wrong
Routing differs wherever hidden states differ, whatever the cause. That is why this experiment runs last and counts only if the
remaining gap is at the floor.

## Seen in
arXiv:2510.11370 (rollout routing replay)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.attribution.trace import Attribution


@rule(
    "ATT004",
    "routing-gap",
    severity="warning",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("routing")
