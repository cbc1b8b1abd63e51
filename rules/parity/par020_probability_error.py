"""The multiplicative probability error is above its limit.

## What it checks
mean exp|trainer - engine| over the compared tokens, 1 where both agree. Limit: 1.05, `--max-mult-prob-error`.

## Why it matters
The loss treats the engine's samples as the trainer's own. What the two disagree in goes into every gradient: it is the
number that NeMo-RL gates new models by.

## How to fix
Look at what other rules say first: shift, temperature, placeholders, stale tokens. Then at the weights (`ckptcheck refit`),
then at precision: kernels, the head, the cache.

## When it can be wrong
Engines of lower precision than the trainer (fp8, int4) have more, and so have MoE models: measure the floor and give
`--floor`.

## Seen in
NVIDIA-NeMo/RL docs/adding-new-models.md and its nightly gates (1.02 to 1.15); NeMo-RL#4243
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import older
from ckptcheck.phrase import count


@rule("PAR020", "probability-error", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    found, gate = judged.gap, judged.gates.mult_prob_error
    if not found.mult_prob_error <= gate:
        text = f"mult_prob_error is {found.mult_prob_error:.5g} over {count(found.tokens, 'token')}"
        text += (
            judged.times_floor("mult_prob_error", found.mult_prob_error)
            + f", and the limit is {gate:g}"
            + older(judged)
        )
        yield Problem(text, hint="ckptcheck refit tells whether it is the weights")
