"""The two sides do not mean the same thing by a logprob.

## What it checks
The same tokens are scored again with one meaning changed at a time: temperature, top-p and top-k, the token that a logprob belongs
to, tokens that nobody scored, BOS, context, config. One of these takes a good part of the gap away.

## Why it matters
The ratio that the objective multiplies advantages with is then wrong by construction, in every batch, and no correction for
staleness or precision is meant for that.

## How to fix
As the message says; then run it again, for a second cause may be beneath.

## When it can be wrong
A share is of the excess over the floor, of a mean over tokens. Two causes that act on the same tokens share
it in the order of the ladder. A temperature that fits best has to take away half of it.

## Seen in
vllm-project/vllm#9453 (raw and processed logprobs), PipelineRL's move from vLLM V0 to V1, NVIDIA-NeMo/RL docs/adding-new-models.md
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.trace import Attribution


@rule(
    "ATT001",
    "semantic-gap",
    severity="error",
    on="attribution",
    when=lambda seen: bool(seen.climb.tokens) and not seen.healthy,
)
def check(seen: Attribution) -> Iterator[Problem]:
    yield from seen.caused("semantics")
