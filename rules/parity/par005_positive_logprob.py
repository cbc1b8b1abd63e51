"""A logprob is above 0.

## What it checks
Every logprob under the response mask: a probability is at most 1. The rule allows 0.001 for rounding.

## Why it matters
A value above 0 is not a logprob but a logit, a probability or a negated logprob. The ratio of a policy to it means nothing.

## How to fix
Find out what the column holds. Take the log of probabilities, subtract log-sum-exp from logits, change the sign of losses.

## When it can be wrong
An output head in bfloat16 that normalises its logits in bfloat16 can round a logprob to a little above 0.

## Seen in
harnesses that store the cross entropy, which is minus the logprob
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, find_tokens, list_logprob_columns
from ckptcheck.text.formatting import count

ROUNDING = 1e-3
"""Largest value that rounding may turn a logprob of 0 into."""


@rule("PAR005", "positive-logprob", severity="error", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    for column in list_logprob_columns(evidence):
        if matches := find_tokens(evidence, column, lambda values: (values > ROUNDING) & np.isfinite(values)):
            text = (
                f"{describe_logprob_column(column)} is above 0 for {count(matches.number, 'token')}, the first"
                f" {matches.value:.4g}"
            )
            yield Problem(
                text + ": it is not a logprob",
                key=f"{column}, {matches.place}",
                hint="check whether the column holds losses, logits or probabilities",
            )
