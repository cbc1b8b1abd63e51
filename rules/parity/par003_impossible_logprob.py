"""A logprob is NaN, infinite or above 0.

## What it checks
Every logprob of engine, trainer and reference model under the response mask. A probability is at most 1 (the rule allows a logprob
of 0.001 for rounding), and a token that a side drew cannot have had probability 0 on that side.

## Why it matters
- One NaN makes the loss of its whole batch NaN, and a metric that leaves it out reports that all is well. In an engine NaN comes
  from broken weights or from a kernel; in a file it also stands for what JSON cannot represent.
- -inf means that this token was impossible. Its ratio is 0 or infinite, and so is the KL. The other side reports it when it
  truncates the distribution (top-p, top-k) before it takes the logprob, or masks padding ids.
- A value above 0 is not a logprob but a logit, a probability or a negated logprob. The ratio of a policy to it means nothing.

## How to fix
- NaN: scan the weights (`ckptcheck scan`), then score the sequence alone.
- Infinite: take the trainer's logprobs without top-p and top-k, or train with the same mask of allowed ids.
- Above 0: find out what the column holds. Take the log of probabilities, subtract log-sum-exp from logits, change the sign of
  losses.

## When it can be wrong
- A writer may fill places with NaN or -inf for which the engine gave nothing, such as the first token or the output of a tool, and
  mark them as part of the response. Then the mask is wrong and not the model: remove those tokens from it.
- The rule does not count NaN outside of the mask, nor a NaN that the job replaced with 0 before it wrote the file. A floor such as
  -1e10 in place of -inf is finite and shows in PAR020 only.
- The trainer drew the tokens: an engine that samples with top-k or a mask of allowed ids is right to report -inf for tokens that
  it never draws. The gap is infinite all the same, so use its raw logprobs.
- An output head in bfloat16 that normalises its logits in bfloat16 can round a logprob to a little above 0.

## Seen in
PrimeIntellect-ai/prime-rl#2714: values up to 1e17 and NaN after a layerwise reload; vLLM `processed_logprobs` with top-p: ids
outside of the nucleus are -inf; harnesses that store the cross entropy, which is minus the logprob
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import describe_logprob_column, find_tokens, list_logprob_columns
from ckptcheck.text.formatting import count

ROUNDING = 1e-3
"""Largest value that rounding may turn a logprob of 0 into."""


@rule("PAR003", "impossible-logprob", severity="error", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    for column in list_logprob_columns(evidence):
        subject = describe_logprob_column(column)
        if matches := find_tokens(evidence, column, np.isnan):
            yield Problem(
                f"{subject} is NaN for {count(matches.number, 'token')} in {count(matches.sequences, 'sequence')}",
                key=f"{column}, {matches.place}",
                hint="score that sequence alone, and scan the weights for NaN",
            )
        if matches := find_tokens(evidence, column, np.isinf):
            text = (
                f"{subject} is {matches.value:g} for {count(matches.number, 'token')} in"
                f" {count(matches.sequences, 'sequence')}"
            )
            yield Problem(
                text + (", which means probability 0" if matches.value < 0 else ""),
                key=f"{column}, {matches.place}",
                hint="take the logprobs before top-p, top-k and masks of ids apply",
            )
        if matches := find_tokens(evidence, column, lambda values: (values > ROUNDING) & np.isfinite(values)):
            yield Problem(
                f"{subject} is above 0 for {count(matches.number, 'token')}, the first {matches.value:.4g}: it is not a logprob",
                key=f"{column}, {matches.place}",
                hint="check whether the column holds losses, logits or probabilities",
            )
