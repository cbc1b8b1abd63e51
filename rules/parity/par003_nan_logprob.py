"""A logprob is NaN.

## What it checks
Every logprob of engine, trainer and reference model under the response mask.

## Why it matters
One NaN makes the loss of its whole batch NaN, and a metric that leaves it out reports that all is well. In an engine NaN comes
from broken weights or from a kernel; in a file it also stands for what JSON cannot represent.

## How to fix
Scan the weights (`ckptcheck scan`), then score the sequence alone.

## When it can be wrong
- A writer may fill places with NaN for which the engine gave nothing, such as the first token or the output of a tool, and mark
  them as part of the response. Then the mask is wrong and not the model: remove those tokens from it.
- The rule does not count NaN outside of the mask, nor a NaN that somebody replaced with 0 before the file was written.

## Seen in
PrimeIntellect-ai/prime-rl#2714: values up to 1e17 and NaN after a layerwise reload
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, find_tokens, list_logprob_columns
from ckptcheck.text.formatting import count


@rule("PAR003", "nan-logprob", severity="error", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    for column in list_logprob_columns(evidence):
        if matches := find_tokens(evidence, column, np.isnan):
            text = (
                f"{describe_logprob_column(column)} is NaN for {count(matches.number, 'token')} in"
                f" {count(matches.sequences, 'sequence')}"
            )
            yield Problem(
                text, key=f"{column}, {matches.place}", hint="score that sequence alone, and scan the weights for NaN"
            )
