"""Full-vocabulary logprobs do not add up to 1.

## What it checks
Where full-vocabulary logprobs are recorded: the logarithm of the sum of all probabilities, which is 0. 0.01 is allowed.

## Why it matters
Logits in place of logprobs, a slice of the vocabulary (one tensor-parallel rank's part), or padding rows that were counted
in. KL and temperature computed of them mean nothing. NaN, and rows in which nothing was recorded, are told here too.

## How to fix
Apply log-softmax over the whole vocabulary before recording.

## When it can be wrong
A sum over 150,000 ids in bfloat16 is off by more than this.

## Seen in
harnesses that save one rank's logits
"""

from collections.abc import Iterator
from math import inf

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.rule import Skip

TOLERANCE = 0.01


@rule(
    "PAR032",
    "unnormalized-distribution",
    severity="error",
    on="rollouts",
    when=lambda judged: judged.sound and "full_positions" in judged.rollouts,
)
def check(judged: Judged) -> Iterator[Problem]:
    found = judged.exact
    if found is None:
        raise Skip("full-vocabulary logprobs of both sides are not recorded alike")
    if found.mass == inf:
        yield Problem("a position's logprobs hold NaN, or no number at all", hint="look at what recorded them")
    elif not found.mass <= TOLERANCE:
        text = f"the probabilities of one position add up to e^{found.mass:.4g} or e^-{found.mass:.4g}, and not to 1"
        yield Problem(text, hint="these are logits, or a part of the vocabulary: apply log-softmax over all of it")
