"""The floor was measured with something else than what is judged.

## What it checks
With `--floor`: the engine, the trainer, their dtypes and the model's vocabulary that the floor was measured with, against
those of the rollouts, as far as both tell. Versions are not compared, and no names of models: a checkpoint has another name
at every step.

## Why it matters
A floor says what equal weights cost in this engine, this trainer and this precision. Against the floor of a bfloat16 model
a float32 one with a stale layer is within its limits.

## How to fix
Measure the floor anew: `ckptcheck parity calibrate` with the engine, the trainer and the dtype of the run.

## When it can be wrong
Where a floor of another precision is meant, as the least that could be had. Frameworks' own names of trainers (`verl`,
`prime-rl`) are not compared.

## Seen in
floors kept in a repository while the engine's dtype changed
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import foreign


@rule(
    "PAR033",
    "foreign-floor",
    severity="warning",
    on="rollouts",
    when=lambda judged: judged.sound and judged.floor is not None,
)
def check(judged: Judged) -> Iterator[Problem]:
    if apart := list(foreign(judged)):
        text = "the floor was measured with something else: " + ", ".join(apart)
        yield Problem(text, hint="measure it anew with ckptcheck parity calibrate")
