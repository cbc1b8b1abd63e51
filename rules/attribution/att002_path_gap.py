"""The engine computes the same tokens differently by another path.

## What it checks
The engine scores the same tokens again with empty caches, by prefill instead of decoding, and each sequence alone.

## Why it matters
The weights are right, and the numbers that were sampled from are not: stale keys and values after a weight update, a decoding
kernel that is off, results that depend on who else is served.

## How to fix
As the message says.

## When it can be wrong
A share is of the excess over the floor, of a mean over tokens. Two causes that act on the same tokens share
it in the order of the ladder. Where nobody could compare the weights, the message says so.

## Seen in
vllm-project/vllm#22103 (prefix cache across weight updates), thinkingmachines.ai on batch invariance
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT002",
    "path-gap",
    severity="error",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("path")
