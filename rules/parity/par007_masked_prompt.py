"""The response mask covers tokens of the prompt.

## What it checks
Every token under the mask comes after its prompt.

## Why it matters
The engine did not draw the prompt and has no logprob for it. A trainer that uses 0 in its place sees a ratio of e to the
trainer's logprob, and the policy learns to write prompts.

## How to fix
Shift the mask, or correct the length of the prompt. A mask that is off by one is the most common cause.

## When it can be wrong
- In a trajectory of several turns the prompt is what came before the first response. A writer that counts later user turns into
  it makes responses look like prompts; then `prompt_lengths` is wrong.
- You train on prompts on purpose. Parity cannot judge that, because the engine drew none of them.
- A mask that is off by one to the right covers no prompt, so this rule does not find it.

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
    when=lambda evidence: evidence.is_well_formed and "response_mask" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    covered, sequences, first = 0, 0, -1
    for block in evidence.rollouts.blocks():
        in_prompt = block.response_mask & ~block.after_prompt
        owners = np.unique(block.owners[in_prompt])
        covered, sequences = covered + int(in_prompt.sum()), sequences + len(owners)
        first = int(owners[0]) if first < 0 and len(owners) else first
    if covered:
        text = f"the response mask covers {count(covered, 'token')} of the prompts of {count(sequences, 'sequence')}"
        yield Problem(text, key=f"response_mask, sequence {first}", hint="check whether the mask is off by one")
