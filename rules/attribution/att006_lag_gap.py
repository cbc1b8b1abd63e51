"""The gap comes from tokens that older weights sampled, as an asynchronous job intends.

## What it checks
After every other experiment, which ran without them: the engine scores the tokens that older weights sampled with the trainer's
weights, and their gap vanishes. Without an engine they are left out, the remaining gap is at the floor, and the message says that
the older tokens themselves were not tested.

## Why it matters
It is not an error: an asynchronous job trains on tokens of a policy some versions old. Here, and only here, a correction such as
truncated importance sampling is the right answer.

## How to fix
Nothing to fix; bound the lag if it is too large. Do not correct the objective for a cause in any other layer: that hides a bug.

## When it can be wrong
The older tokens may have a second fault, which then hides among them.

## Seen in
AReaL (arXiv:2505.24298), PipelineRL (arXiv:2509.19128)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT006",
    "lag-gap",
    severity="info",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("objective")
