"""Trainer and engine mean different things by a logprob.

## What it checks
Each experiment scores the same tokens again with one meaning changed: the temperature, top-p and top-k, the token that a logprob
belongs to, tokens that a side did not score, BOS, the context, the config. One of these changes removes a good part of the gap.

## Why it matters
The ratio that the objective multiplies advantages with is wrong in every batch, by construction. Corrections for staleness or
precision are not made for that.

## How to fix
Do what the message says. Then run the command again, because a second cause may lie beneath the first.

## When it can be wrong
- The share in the message is a share of the mean |Δ| over tokens above the floor. Where two causes act on the same tokens, the
  experiment that runs first gets their common share.
- A temperature that ckptcheck fits counts only if it removes at least half of the excess.

## Seen in
vllm-project/vllm#9453 (raw and processed logprobs), PipelineRL's move from vLLM V0 to V1, NVIDIA-NeMo/RL docs/adding-new-models.md
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT001",
    "semantic-gap",
    severity="error",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_problems("semantics")
