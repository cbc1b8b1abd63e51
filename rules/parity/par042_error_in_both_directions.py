"""The probability error over both sampling directions is above its limit.

## What it checks
Where the engine drew some files and the trainer others: the mean of the two mult_prob_errors. Limit: 1.05,
`--set max-mult-prob-error`.

## Why it matters
The engine's samples never contain tokens that the engine cannot draw. Only samples of the trainer show that they are missing.

## How to fix
As for PAR020. Also look at what the trainer's samples contain and the engine's do not: masked ids, a smaller vocabulary.

## When it can be wrong
- Rounding alone can lift a mixture of experts, or long sequences in bfloat16, above 1.05: measure the floor
  (`ckptcheck parity calibrate`) and set `--set max-mult-prob-error` to what that model can reach.
- The last file of each direction counts, so the two should be of one step and one set of prompts. After a weight update in
  between, the mean is of two models.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md: the much stricter guarantee
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.series import RolloutSeries


@rule(
    "PAR042",
    "error-in-both-directions",
    severity="error",
    on="rollout-series",
    when=lambda series: series.both_directions is not None,
)
def check(series: RolloutSeries) -> Iterator[Problem]:
    if series.both_directions is None:
        return
    engine, trainer, mean = series.both_directions
    if not mean <= series.thresholds.mult_prob_error:
        text = f"mult_prob_error is {mean:.5g} over both directions ({engine:.5g} on the engine's tokens, {trainer:.5g} on "
        text += f"the trainer's), and the limit is {series.thresholds.mult_prob_error:g}"
        yield Problem(text, hint="look at the tokens that only one side draws")
