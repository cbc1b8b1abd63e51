"""An experiment names a cause of the gap between trainer and engine.

## What it checks
Each experiment scores the same tokens again with one thing changed, and removes a good part of the gap. The cause is in one of
these layers:

- semantics (error): a meaning changes: the temperature, top-p and top-k, the token that a logprob belongs to, tokens that a side
  did not score, BOS, the context, the config.
- weights (error): ckptcheck compares the tensors of both sides byte by byte. Where they differ, it starts the engine again from the
  trainer's weights.
- path (error): the engine scores with empty caches, by prefill instead of decoding, and each sequence alone.
- precision (warning): the output head, and then the whole model, compute in float32: on either side alone, and on both.
- routing (warning): each sequence is cut at the first token that went to other experts. The gap of the tokens that
  remain is at the floor.
- objective (info): the engine scores the tokens that older weights sampled with the trainer's weights. Without an engine they are
  left out, the remaining gap is at the floor, and the message says that the older tokens themselves were not tested.

## Why it matters
- Semantics: the ratio that the objective multiplies advantages with is wrong in every batch, by construction. Corrections for
  staleness or precision are not made for that.
- Weights: the engine does not sample from the policy in training.
- Path: the weights are right, but the engine sampled from wrong numbers: because of stale keys and values after a weight update, a
  decoding kernel that is off, or results that depend on the other requests in the batch.
- Precision is no bug, but it grows with length and depth, and makes importance ratios large.
- Routing: a token that goes to another expert gets another logprob, far beyond rounding, and trains an expert that did not serve
  it.
- Objective: an asynchronous job trains on tokens of a policy some versions old. Here, and only here, a correction such as truncated
  importance sampling is the right answer.

## How to fix
Do what the message says. Then run the command again, because a second cause may lie beneath the first.

- Weights: `ckptcheck refit` names what the sync lost and why, `ckptcheck diff` what a conversion changed, and
  `ckptcheck parity localize` the first module whose output differs.
- Precision: compute the output head in float32 on both sides; or use float16 instead of bfloat16, or the same kernels on both
  sides; or correct for it in the objective.
- Routing: replay the engine's routing in the trainer (R3), or compute the routers in the same dtype on both sides.
- Objective: bound the lag if it is too large. Do not correct the objective for a cause in any other layer: that hides a bug.

## When it can be wrong
- The share in the message is a share of the mean |Δ| over tokens above the floor. Where two causes act on the same tokens, the
  experiment that runs first gets their common share.
- A temperature that ckptcheck fits counts only if it removes at least half of the excess.
- Where ckptcheck could not compare the weights, the message about a path, a precision or a routing says so, and the weights may be
  the cause.
- float32 on one side alone can make a gap larger; then only float32 on both sides counts.
- Routing differs wherever hidden states differ, whatever the cause. That is why this experiment runs last.
- Tokens of older weights may have a second fault, which then hides among them.

## Seen in
- semantics: vllm-project/vllm#9453 (raw and processed logprobs), PipelineRL's move from vLLM V0 to V1, NVIDIA-NeMo/RL
  docs/adding-new-models.md
- weights: NVIDIA-NeMo/RL#3259, sgl-project/sglang#27718
- path: vllm-project/vllm#22103 (prefix cache across weight updates), thinkingmachines.ai on batch invariance
- precision: arXiv:2510.26788 (float16 against the mismatch), arXiv:2506.13585 (MiniMax-M1: the head in float32)
- routing: arXiv:2510.11370 (rollout routing replay)
- objective: AReaL (arXiv:2505.24298), PipelineRL (arXiv:2509.19128)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.trace import Attribution


@rule(
    "ATT001",
    "gap-cause",
    severity="error",
    on="attribution",
    when=lambda evidence: bool(evidence.search.tokens) and not evidence.is_at_floor,
)
def check(evidence: Attribution) -> Iterator[Problem]:
    yield from evidence.list_causes()
