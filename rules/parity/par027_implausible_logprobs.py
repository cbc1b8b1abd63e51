"""The model finds its own text unlikely.

## What it checks
The mean logprob of the tokens that the engine drew at a temperature of at most 1, by the engine itself and by the trainer.

| mean logprob | severity |
|---|---|
| below -0.8 for an instruct or chat model, by its name; -4.3 where the name says less than 1B; -3 for any other | info |
| below 0.47 of what a guess among the whole vocabulary gives (-ln of its size: -11.9 for Qwen3) | warning |
| below three quarters of that | error |

A trainer finds what a broken engine writes unlikely. So where both are as low as that, it is the engine; and where the trainer
alone is, it is the engine if its texts (`--tokenizer`) are none by repeating-responses, and may be if they are.

Where the rollouts do not say how large the vocabulary is, 32,000 tokens count (-10.4). For smaller ones there is only the info.

## Why it matters
Tokens drawn from a distribution have a mean logprob near minus its entropy: a few tenths of a nat for an instruct model. A
slightly lower value means that the prompts are not in the form that the model knows (a wrong chat template, a missing BOS,
another tokenizer). A value near a guess means that the side which gives it computes with other weights than were trained, or with
another configuration (rotary base, norms, the order of layers under pipeline parallelism, the temperature).

## How to fix
For an info, decode a prompt and look at it: `ckptcheck parity judge FILE --tokenizer DIR` prints the texts. For an error on the
trainer's side, look in its log for the line that says that the checkpoint was loaded, and compare its configuration with
config.json. On the engine's side compare its weights with the checkpoint: `ckptcheck attach`.

## When it can be wrong
The info is a hint only. Instruct models on tasks that they were not trained for, creative text, synthetic prompts and small models
are lower: SmolLM2-135M-Instruct at temperature 1 is at -2.7 on questions, at -3.3 after pieces of text, and at -3.3 to -4.5 with
weights of 4 bits; four answers alone may be a nat lower. With the rotary embedding in the wrong order it is at -5.3, without ten
layers' attention at -4.8. A model that was initialised and never trained is an error here.

## Seen in
slime docs/en/developer_guide/debug.md: 0.8 for an instruct model points to the chat template, an extremely large value to the
training configuration
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.coherence import guess_logprob, mean_logprob
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

TUNED = re.compile(r"instruct|chat|[-_]it\b|rlhf|sft", re.IGNORECASE)
BELOW_A_BILLION = re.compile(r"(?<![\d.])(?:\d{1,4}m|0\.\d{1,3}b)(?![a-z\d])", re.IGNORECASE)
"""A size in a model's name: 135M, 0.5B. Such models are less certain of what they say."""
TUNED_LIMIT, SMALL_LIMIT, LIMIT = -0.8, -4.3, -3.0
"""Of sets of four answers of SmolLM2-135M at temperature 1 to raw text 95 % are above -4.3, and to questions above -3.8."""
UNLIKELY, HOPELESS = 0.47, 0.75
"""Shares of a guess's logprob from which on a mean is a warning, and an error. SmolLM2-135M has at most 0.31 where it is sound,
0.42 with weights that were rounded to 4 bits twice, and 0.48 with a rotary embedding in the wrong order."""


@rule(
    "PAR027",
    "implausible-logprobs",
    severity="info",
    on="rollouts",
    when=lambda evidence: (
        bool({"engine_logprobs", "trainer_logprobs"} & evidence.rollouts.columns.keys())
        and evidence.rollouts.metadata.sampled_by == "engine"
        and not evidence.rollouts.holds_prompts_only
    ),
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metadata = evidence.rollouts.metadata
    temperature = metadata.sampling.temperature
    if temperature is not None and temperature > 1:
        raise Skip(f"at temperature {temperature:g} unlikely tokens are normal")
    if evidence.metrics_or_none is not None:
        # without what has a cause of its own, such as the text of tools under the mask
        gap = evidence.remaining_gap
        means = {"engine": gap.engine_mean, "trainer": gap.trainer_mean}
    else:
        sides = [side for side in ("engine", "trainer") if f"{side}_logprobs" in evidence.rollouts]
        found = {side: mean_logprob(evidence.rollouts, f"{side}_logprobs") for side in sides}
        means = {side: mean for side, mean in found.items() if mean is not None}
    if not means:
        return
    guess = guess_logprob(metadata.vocabulary)
    hopeless = {side: mean for side, mean in means.items() if guess is not None and mean < UNLIKELY * guess}
    for side, mean in hopeless.items():
        assert guess is not None
        other = next((name for name in means if name != side), None)
        if other == "engine" and other in hopeless:
            continue  # a trainer finds what a broken engine writes unlikely
        link = "and" if other in hopeless else "while"
        beside = f", {link} that of the {other} is {means[other]:.3g}" if other else ""
        blamed = "engine" if other and evidence.is_nonsense else side
        is_open = blamed == "trainer" and other
        yield Problem(
            f"the mean logprob of the {side} is {mean:.3g}{beside}; a guess among all tokens gives {guess:.3g}, so the {blamed}"
            f"{' (or, if its text makes no sense, the engine)' if is_open else ''} "
            f"{'computes' if mean < HOPELESS * guess else 'probably computes'} with other weights, or another configuration, than "
            "the model was trained with",
            severity="error" if mean < HOPELESS * guess else "warning",
            hint=("print the texts with --tokenizer DIR; if they are sound, " if is_open else "")
            + "see in the trainer's log that it loaded the checkpoint, and compare its configuration with config.json"
            if blamed == "trainer"
            else "compare the engine's weights with the checkpoint: ckptcheck attach",
        )
    if hopeless:
        return
    small = BELOW_A_BILLION.search(metadata.model)
    tuned = TUNED.search(metadata.model) and not small
    side = "trainer" if "trainer" in means else "engine"
    limit = TUNED_LIMIT if tuned else SMALL_LIMIT if small else LIMIT
    if means[side] < limit:
        kind = "an instruct model gives its own answers" if tuned else "a model gives its own text"
        kind = "a model of this size gives its own text" if small else kind
        text = f"the mean logprob of the {side} is {means[side]:.3g}; {kind} more than {limit:g}"
        hint = "decode a prompt, and compare it with the chat template"
        if side == "engine":
            hint += (
                "; ckptcheck parity score FILE MODEL tells whether the engine computes otherwise than the checkpoint"
            )
        yield Problem(text, hint=hint)
