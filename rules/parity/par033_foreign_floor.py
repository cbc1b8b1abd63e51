"""The floor was measured with another set-up than the rollouts.

## What it checks
With `--floor`: the engine, the trainer, their dtypes and the size of the vocabulary with which the floor was measured, against
those of the rollouts, as far as both files record them. The rule does not compare versions, nor names of models, because a
checkpoint has another name at every step.

## Why it matters
A floor says what equal weights cost in this engine, this trainer and this precision. A float32 model with a stale layer is
within the limits that the floor of a bfloat16 model sets.

## How to fix
Measure the floor again: `ckptcheck parity calibrate` with the engine, the trainer and the dtype of the run.

## When it can be wrong
You use a floor of another precision on purpose, as the least that can be reached. The rule does not compare frameworks' own
names of trainers (`verl`, `prime-rl`).

## Seen in
NovaSky-AI/SkyRL#1862 (with equal weights 0.0118, or 0.0279 without the engine's quantization in the trainer),
NovaSky-AI/SkyRL#1408 (a limit of 0.07 that another torch and vLLM made 0.09)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import find_floor_mismatches


@rule(
    "PAR033",
    "foreign-floor",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.floor is not None,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    if differences := list(find_floor_mismatches(evidence)):
        text = "the floor was measured with another set-up: " + ", ".join(differences)
        yield Problem(text, hint="measure it again with ckptcheck parity calibrate")
