"""Tokens are older, or newer, than the weights that scored them.

## What it checks
The weight version of every token against that of the trainer, where both are numbers: at most `--max-lag` versions older (1
by default, as in one-step-off training), and never newer.

## Why it matters
Every step of lag is a step off policy. It looks like a gap between engine and trainer and is none. Tokens that are newer
than the trainer's weights mean that a trainer was resumed from an older step than its engines.

## How to fix
Compare with the trainer's logprobs at the version of the tokens. Where lag is meant, say how much: `--max-lag`.

## When it can be wrong
A version that counts calls of the update API, and not steps, is ahead of the trainer's own count.

## Seen in
THUDM/slime#1695 (after a resume), volcengine/verl#5721, PipelineRL (lag grew with the first vLLM V1 path)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import lag
from ckptcheck.phrase import count
from ckptcheck.rule import Skip


@rule(
    "PAR012",
    "stale-tokens",
    severity="warning",
    on="rollouts",
    when=lambda judged: judged.scored and "version_spans" in judged.rollouts,
)
def check(judged: Judged) -> Iterator[Problem]:
    found = lag(judged)
    if found is None:
        raise Skip("versions of the tokens and of the trainer's weights are not both recorded as numbers")
    newest, oldest = found
    if oldest > judged.gates.lag:
        text = f"tokens are up to {count(oldest, 'version')} older than the weights that the trainer scored with"
        yield Problem(text, hint="score with the weights that drew them, or pass --max-lag where that is meant")
    if newest < 0:
        text = f"tokens are up to {count(-newest, 'version')} newer than the weights that the trainer scored with"
        yield Problem(text, hint="see whether the trainer was resumed from an older step than its engines")
