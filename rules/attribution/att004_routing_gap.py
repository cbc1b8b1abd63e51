"""The gap lies at tokens that routers sent to other experts.

## What it checks
Tokens from the first of a sequence on that went to other experts are left out; what is left is at the floor.

## Why it matters
A token that goes to another expert has another logprob, far beyond rounding, and trains an expert that did not serve it.

## How to fix
Replay the engine's routing in the trainer (R3), or compute routers in float32 on both sides.

## When it can be wrong
Routing differs wherever hidden states differ, whatever the cause; so this is the last rung, and what is left has to be
at the floor.

## Seen in
arXiv:2510.11370 (rollout routing replay)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT004",
    "routing-gap",
    severity="warning",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("routing")
