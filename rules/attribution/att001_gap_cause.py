"""A cause of the gap between trainer and engine is known, or a good part of the gap is unexplained.

## What it checks
Each experiment scores the same tokens again with one thing changed, and removes a good part of the gap. The cause is in one of
these layers:

- semantics (error): a meaning changes: the temperature, top-p and top-k, the token that a logprob belongs to, tokens that a side
  did not score, BOS, the config.
- weights (error): ckptcheck compares the tensors of both sides byte by byte. Where they differ, it starts the engine again from the
  trainer's weights.
- path (error): the engine scores with empty caches, by prefill instead of decoding, and each sequence alone.
- precision (warning): the output head, and then the whole model, compute in float32: on either side alone, and on both.
- routing (warning): each sequence is cut at the first token that went to other experts. The gap of the tokens that
  remain is at the floor.
- objective (info): the engine scores the tokens that older weights sampled with the trainer's weights. Without an engine they are
  left out, the remaining gap is at the floor, and the message says that the older tokens themselves were not tested.

Then: how much of the excess over the floor remains after every experiment that ckptcheck could run; a good part is a warning. At
least one token under the response mask has a finite logprob on both sides, else it is an error.

## Why it matters
- A gap over no tokens is 0, which looks perfect. And an unknown cause is not harmless: without that warning a reader takes the
  causes that were found for all causes.
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

- Unexplained: look at the skipped experiments and supply what they need (a trainer, an engine, recorded distributions, weight
  versions). Then let `ckptcheck parity localize` find the first module whose output differs.
- Nothing to compare: score the rollouts with `ckptcheck parity record` and `ckptcheck parity score`. `ckptcheck parity judge` says
  what is wrong with a file.
- Weights: `ckptcheck refit` names what the sync lost and why, `ckptcheck diff` what a conversion changed, and
  `ckptcheck parity localize` the first module whose output differs.
- Precision: compute the output head in float32 on both sides; or use float16 instead of bfloat16, or the same kernels on both
  sides; or correct for it in the objective.
- Routing: replay the engine's routing in the trainer (R3), or compute the routers in the same dtype on both sides.
- Objective: bound the lag if it is too large. Do not correct the objective for a cause in any other layer: that hides a bug.

## When it can be wrong
- Where the floor was assumed and not measured, the remaining gap may be the floor: `ckptcheck parity calibrate` measures it.
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
- unexplained: PipelineRL's move from vLLM V0 to V1 (a gap remained after the right kind of logprobs: the head's dtype),
  verl-project/verl#7970 (rollouts whose response mask is all zero)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.attribution.search import EXPLAINED, Attribution
from ckptcheck.text.formatting import count


@rule("ATT001", "gap-cause", severity="error", on="attribution")
def check(evidence: Attribution) -> Iterator[Problem]:
    search = evidence.search
    if not search.tokens:
        yield Problem(
            "no token could be compared",
            hint="ckptcheck parity judge says what is wrong with the rollouts",
        )
        return
    if search.is_at_floor:
        return
    yield from evidence.list_causes()
    if search.explained >= EXPLAINED or search.remaining_gap <= evidence.limit:
        return
    skipped = [step.name for step in search.steps if step.skipped]
    unexplained = 1 - max(0.0, search.explained)
    text = f"the cause of {unexplained:.0%} of the gap is unknown: mean |Δ| is {search.remaining_gap:.3g} nats"
    text += " with all causes removed"
    if skipped:
        text += f"; {count(len(skipped), 'experiment was', 'experiments were')} skipped: {', '.join(skipped)}"
    hint = (
        "name the trainer's checkpoint after the file: then these experiments run too"
        if any(step.skipped and step.skipped.endswith("is given") for step in search.steps)
        else "give the experiments that were skipped what they need"
        if skipped
        else "ckptcheck parity localize names the first module that differs"
    )
    yield Problem(text, hint=hint, severity="warning")
