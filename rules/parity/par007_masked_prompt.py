"""The response mask covers tokens of the prompt.

## What it checks
That every token under the mask comes after its prompt.

## Why it matters
Nobody drew the prompt: the engine has no logprob for it, and a trainer that takes 0 for one sees a ratio of e to the
trainer's logprob. The policy learns to write prompts.

## How to fix
Shift the mask, or correct the length of the prompt. A mask that is off by one is the commonest cause.

## When it can be wrong
In a trajectory of several turns the prompt is what came before the first response; a writer that counts later turns
of the user into it makes responses look like prompts. Then `prompt_lengths` is wrong. Training on prompts on purpose
is nothing that parity can judge: the engine drew none of them. A mask that is off by one to the right covers no
prompt and is not seen here.

## Seen in
modelscope/ms-swift#8196 (a column shifted left by one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count


@rule(
    "PAR007",
    "masked-prompt",
    severity="error",
    on="rollouts",
    when=lambda judged: judged.sound and "response_mask" in judged.rollouts,
)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    covered, sequences, first = 0, 0, -1
    for block in judged.rollouts.blocks():
        wrong = block.asked & ~block.after_prompt
        owners = np.unique(block.owners[wrong])
        covered, sequences = covered + int(wrong.sum()), sequences + len(owners)
        first = int(owners[0]) if first < 0 and len(owners) else first
    if covered:
        text = f"the response mask covers {count(covered, 'token')} of the prompts of {count(sequences, 'sequence')}"
        yield Problem(text, key=f"response_mask, sequence {first}", hint="see whether the mask is off by one")
