"""A logprob is infinite.

## What it checks
Every logprob under the response mask. A token that a side drew cannot have had probability 0 on that side.

## Why it matters
-inf means that this token was impossible. Its ratio is 0 or infinite, and so is the KL. The other side reports it when it
truncates the distribution (top-p, top-k) before it takes the logprob, or masks padding ids.

## How to fix
Take the trainer's logprobs without top-p and top-k, or train with the same mask of allowed ids.

## When it can be wrong
- The trainer drew the tokens: an engine that samples with top-k or a mask of allowed ids is right to report -inf for tokens that
  it never draws. The gap is infinite all the same, so use its raw logprobs.
- A writer uses -inf for a place that has no logprob: leave that place out of the mask.
- A floor such as -1e10 in place of -inf is finite and shows in PAR020 only.

## Seen in
vLLM `processed_logprobs` with top-p: ids outside of the nucleus are -inf
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, find_tokens, list_logprob_columns
from ckptcheck.text.formatting import count


@rule("PAR004", "infinite-logprob", severity="error", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    for column in list_logprob_columns(evidence):
        if matches := find_tokens(evidence, column, np.isinf):
            text = (
                f"{describe_logprob_column(column)} is {matches.value:g} for {count(matches.number, 'token')} in"
                f" {count(matches.sequences, 'sequence')}"
            )
            text += ", which means probability 0" if matches.value < 0 else ""
            yield Problem(
                text,
                key=f"{column}, {matches.place}",
                hint="take the logprobs before top-p, top-k and masks of ids apply",
            )
