"""The engine computes other logprobs for the same tokens on another path.

## What it checks
The engine scores the same tokens again: with empty caches, by prefill instead of decoding, and each sequence alone. One of these
changes removes a good part of the gap.

## Why it matters
The weights are right, but the engine sampled from wrong numbers: because of stale keys and values after a weight update, a
decoding kernel that is off, or results that depend on the other requests in the batch.

## How to fix
Do what the message says.

## When it can be wrong
- The share in the message is a share of the mean |Δ| over tokens above the floor. Where two causes act on the same tokens, the
  experiment that runs first gets their common share.
- Where ckptcheck could not compare the weights, the message says so, and the weights may be the cause.

## Seen in
vllm-project/vllm#22103 (prefix cache across weight updates), thinkingmachines.ai on batch invariance
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT002",
    "path-gap",
    severity="error",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("path")
