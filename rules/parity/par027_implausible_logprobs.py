"""The model finds its own text unlikely.

## What it checks
The mean logprob of the trainer over what the engine drew, at a temperature of at most 1: below -0.8 for a model whose name
says that it is an instruct or chat model, below -3 for any.

## Why it matters
Whoever draws from a distribution meets its entropy: a few tenths of a nat for an instruct model. Far more means that the
prompts are not in the form the model knows (a wrong chat template, a missing BOS, another tokenizer), or that weights are
broken.

## How to fix
Decode a prompt and look at it. Compare the chat template with the one the model was trained on.

## When it can be wrong
Instruct models on tasks that they were not trained for, creative text, synthetic prompts, and small models: SmolLM2-135M-Instruct
is at -3 on random prompts. It is a hint.

## Seen in
slime docs/en/developer_guide/debug.md: 0.8 for an instruct model points to the chat template
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.rule import Skip

TUNED = re.compile(r"instruct|chat|[-_]it\b|rlhf|sft", re.IGNORECASE)
TUNED_LIMIT, LIMIT = -0.8, -3.0


@rule(
    "PAR027",
    "implausible-logprobs",
    severity="info",
    on="rollouts",
    when=lambda judged: judged.scored and judged.rollouts.metadata.sampled_by == "engine",
)
def check(judged: Judged) -> Iterator[Problem]:
    temperature = judged.rollouts.metadata.sampling.temperature
    if temperature is not None and temperature > 1:
        raise Skip(f"at temperature {temperature:g} unlikely tokens are to be expected")
    tuned = TUNED.search(judged.rollouts.metadata.model)
    found, limit = judged.gap, TUNED_LIMIT if tuned else LIMIT
    if found.trainer_mean < limit:
        kind = "an instruct model finds its own answers" if tuned else "a model finds its own text"
        text = f"the mean logprob of the trainer is {found.trainer_mean:.3g}, and {kind} likelier than {limit:g}"
        yield Problem(text, hint="decode a prompt, and compare it with the chat template")
