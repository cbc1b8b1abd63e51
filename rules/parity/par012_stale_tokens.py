"""Tokens are older, or newer, than the weights that scored them.

## What it checks
The weight version of every token against that of the trainer, where both are numbers. A token may be at most `--set max-lag`
versions older (1 by default, as in one-step-off training), and never newer.

## Why it matters
- Every version of lag is a step off policy. It looks like a gap between engine and trainer although there is none.
- Tokens that are newer than the trainer's weights mean that the trainer was resumed from an older step than its engines.

## How to fix
Compare with the trainer's logprobs at the version of the tokens. Where you want the lag, say how much: `--set max-lag`.

## When it can be wrong
A version that counts calls of the update API, and not steps, is ahead of the trainer's own count.

## Seen in
THUDM/slime#1695 (after a resume), volcengine/verl#5721, PipelineRL (lag grew with the first vLLM V1 path)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import compute_version_lag
from ckptcheck.text.formatting import count


@rule(
    "PAR012",
    "stale-tokens",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and "version_spans" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    lag = compute_version_lag(evidence)
    if lag is None:
        raise Skip("the file does not record the versions of the tokens and of the trainer's weights as numbers")
    newest, oldest = lag
    if oldest > evidence.thresholds.lag:
        text = f"tokens are up to {count(oldest, 'version')} older than the weights that the trainer scored with"
        yield Problem(text, hint="score with the weights that drew them, or pass --set max-lag if you want that lag")
    if newest < 0:
        text = f"tokens are up to {count(-newest, 'version')} newer than the weights that the trainer scored with"
        yield Problem(text, hint="check whether the trainer was resumed from an older step than its engines")
