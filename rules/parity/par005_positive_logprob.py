"""A logprob is above 0.

## What it checks
Every logprob under the response mask: a probability is at most 1. 0.001 is allowed for rounding.

## Why it matters
What is above 0 is no logprob: a logit, a probability, a negated one. The ratio of a policy to it means nothing.

## How to fix
Find out what the column holds: take the log of probabilities, subtract log-sum-exp from logits, turn the sign of losses.

## When it can be wrong
A head in bfloat16 whose logits are normalised in bfloat16 can round a logprob to a little above 0.

## Seen in
harnesses that store the cross entropy, which is minus the logprob
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import logprob_columns, seen, whose
from ckptcheck.phrase import count

ROUNDING = 1e-3
"""What rounding may make of a logprob of 0."""


@rule("PAR005", "positive-logprob", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    import numpy as np

    for column in logprob_columns(judged):
        if found := seen(judged, column, lambda values: (values > ROUNDING) & np.isfinite(values)):
            text = f"{whose(column)} is above 0 for {count(found.number, 'token')}, the first {found.value:.4g}"
            yield Problem(
                text + ": it is no logprob",
                key=f"{column}, {found.place}",
                hint="see whether these are losses, logits or probabilities",
            )
