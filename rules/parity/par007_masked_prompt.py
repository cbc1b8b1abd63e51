"""The response mask covers tokens of the prompt.

## What it checks
Every token under the mask comes after its prompt.

## Why it matters
The engine did not draw the prompt and has no logprob for it. A trainer that uses 0 in its place sees a ratio of e to the
trainer's logprob, and the policy learns to write prompts.

## How to fix
Shift the mask, or correct the length of the prompt. A mask that is off by one is the most common cause (PAR085 names one that
also ends too early).

## When it can be wrong
- In a trajectory of several turns the prompt is what came before the first response. A writer that counts later user turns into
  it makes responses look like prompts; then `prompt_lengths` is wrong.
- You train on prompts on purpose. Parity cannot judge that, because the engine drew none of them.
- A mask that is off by one to the right covers no prompt: PAR085 finds it.

## Seen in
modelscope/ms-swift#8196 (a column shifted left by one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR007",
    "masked-prompt",
    severity="error",
    on="rollouts",
    when=lambda evidence: "response_mask" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    reading = evidence.mask_reading
    if reading is None or not len(reading.prompt_tokens):
        return
    if evidence.metrics_or_none is not None and (fault := evidence.causes.mask_fault) and fault.kind != "short":
        return  # PAR085 names the mask as a whole
    owners = np.unique(np.searchsorted(evidence.rollouts.starts, reading.prompt_tokens, "right") - 1)
    text = f"the response mask covers {count(len(reading.prompt_tokens), 'token')} of the prompts of"
    hint = "check whether the mask is off by one"
    if len(reading.prompt_tokens) != len(owners):
        hint = "take the prompts out of the response mask, or correct prompt_lengths"
    yield Problem(f"{text} {count(len(owners), 'sequence')}", key=f"response_mask, sequence {owners[0]}", hint=hint)
