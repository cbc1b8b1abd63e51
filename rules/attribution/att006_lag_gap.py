"""The gap is that of older weights, by design.

## What it checks
Tokens that older weights drew are left out, and what is left is at the floor.

## Why it matters
It is no error: an asynchronous job trains on tokens of a policy some versions old. Here, and only here, a correction such as
truncated importance sampling is the right answer.

## How to fix
Nothing, or bound the lag. Do not correct the objective for any other layer: that hides a bug.

## When it can be wrong
Older tokens may have another fault as well, which then hides among them.

## Seen in
AReaL (arXiv:2505.24298), PipelineRL (arXiv:2509.19128)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT006",
    "lag-gap",
    severity="info",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("objective")
