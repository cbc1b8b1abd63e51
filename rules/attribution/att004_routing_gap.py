"""The gap lies at tokens that go to other experts, or attend to other positions.

## What it checks
In each sequence, tokens are left out from the first one on that went to other experts; or, in an experiment of its own, from
the first one on for which the indexers of sparse attention agree on less than 80 % of the positions in some layer. The gap of the
tokens that remain is at the floor.

## Why it matters
A token that goes to another expert gets another logprob, far beyond rounding, and trains an expert that did not serve it.

## How to fix
Replay the engine's routing or positions in the trainer (R3), or compute the routers and indexers in the same dtype on both sides.

## When it can be wrong
Routing differs wherever hidden states differ, whatever the cause. That is why this experiment runs last and counts only if the
remaining gap is at the floor.

## Seen in
arXiv:2510.11370 (rollout routing replay)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT004",
    "routing-gap",
    severity="warning",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("routing")
