"""The model finds its own text unlikely.

## What it checks
The trainer's mean logprob of the tokens that the engine drew at a temperature of at most 1. It should be at least -0.8 for a
model whose name says that it is an instruct or chat model, and at least -3 for any model.

## Why it matters
Tokens drawn from a distribution have a mean logprob near minus its entropy: a few tenths of a nat for an instruct model. A much
lower value means that the prompts are not in the form that the model knows (a wrong chat template, a missing BOS, another
tokenizer), or that weights are broken.

## How to fix
Decode a prompt and look at it. Compare the chat template with the one that the model was trained on.

## When it can be wrong
It is a hint only. Instruct models on tasks that they were not trained for, creative text, synthetic prompts and small models
are lower: SmolLM2-135M-Instruct is at -3 on random prompts.

## Seen in
slime docs/en/developer_guide/debug.md: 0.8 for an instruct model points to the chat template
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.parity.rollout_evidence import RolloutEvidence

TUNED = re.compile(r"instruct|chat|[-_]it\b|rlhf|sft", re.IGNORECASE)
TUNED_LIMIT, LIMIT = -0.8, -3.0


@rule(
    "PAR027",
    "implausible-logprobs",
    severity="info",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and evidence.rollouts.metadata.sampled_by == "engine",
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    temperature = evidence.rollouts.metadata.sampling.temperature
    if temperature is not None and temperature > 1:
        raise Skip(f"at temperature {temperature:g} unlikely tokens are normal")
    tuned = TUNED.search(evidence.rollouts.metadata.model)
    metrics, limit = evidence.metrics, TUNED_LIMIT if tuned else LIMIT
    if metrics.trainer_mean < limit:
        kind = "an instruct model gives its own answers" if tuned else "a model gives its own text"
        text = f"the mean logprob of the trainer is {metrics.trainer_mean:.3g}; {kind} more than {limit:g}"
        yield Problem(text, hint="decode a prompt, and compare it with the chat template")
