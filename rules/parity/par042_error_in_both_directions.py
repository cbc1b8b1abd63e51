"""The probability error over both sampling directions is above its limit.

## What it checks
Where some files were drawn from the engine and others from the trainer: the mean of their two mult_prob_errors. Limit:
1.05, `--max-mult-prob-error`.

## Why it matters
Tokens that an engine cannot draw are never in its samples. Only samples of the trainer show that they are missing.

## How to fix
As for PAR020; and look at what the trainer's samples have that the engine's have not: ids that are masked, a smaller
vocabulary.

## When it can be wrong
A mixture of experts or long sequences in bfloat16 may go beyond 1.05 without a fault, from rounding alone: measure
the floor (`ckptcheck parity calibrate`) and set `--max-mult-prob-error` to what that model can reach. The last file
of each direction counts, so the two should be of one step and one set of prompts; after a weight update in between,
the mean is of two models.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md: the much stricter guarantee
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.series import Series


@rule(
    "PAR042",
    "error-in-both-directions",
    severity="error",
    on="rollout-series",
    when=lambda series: series.both_directions is not None,
)
def check(series: Series) -> Iterator[Problem]:
    found = series.both_directions
    assert found is not None
    engine, trainer, mean = found
    if not mean <= series.gates.mult_prob_error:
        text = f"mult_prob_error is {mean:.5g} over both directions ({engine:.5g} on the engine's tokens, {trainer:.5g} on "
        text += f"the trainer's), and the limit is {series.gates.mult_prob_error:g}"
        yield Problem(text, hint="look at the tokens that only one side draws")
