"""No token could be compared, so there is no gap to explain.

## What it checks
At least one token under the response mask has a finite logprob on both sides.

## Why it matters
A gap over no tokens is 0, which looks perfect.

## How to fix
Score the rollouts with `ckptcheck parity record` and `ckptcheck parity score`. `ckptcheck parity judge` says what is wrong with
a file.

## When it can be wrong
Never: there was nothing to compare.

## Seen in
jobs whose response mask was all zero
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule("ATT008", "nothing-to-compare", severity="error", on="attribution")
def check(evidence: Attribution) -> Iterator[Problem]:
    if not evidence.search.tokens:
        yield Problem("no token could be compared", hint="ckptcheck parity judge says what is wrong with the rollouts")
