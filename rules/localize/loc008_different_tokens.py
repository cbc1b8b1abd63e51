"""The two sides computed different tokens.

## What it checks
Every token of one dump has the same token of the other dump as its partner, beside padding and further tokens after it (LOC007).
ckptcheck takes the ids from the input of the embedding.

## Why it matters
Another token, and every token after it in its sequence, has another output at every module. A comparison of them says nothing
about weights, so ckptcheck compares no such sequence.

## How to fix
Dump one and the same prompt on both sides. A token that is missing at the begin (BOS) or another chat template makes the sides'
prompts differ: compare the ids first.

## When it can be wrong
A single padding token at the beginning looks like a BOS token.

## Seen in
the verl/msProbe guide to consistency dumps ("ensure that the input shapes for training and inference are the same")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization


@rule(
    "LOC008", "different-tokens", severity="error", on="localization", when=lambda evidence: evidence.layout is not None
)
def check(evidence: Localization) -> Iterator[Problem]:
    assert evidence.layout is not None
    if evidence.layout.different:
        yield Problem(
            f"the sides computed different tokens: {evidence.layout.different}",
            hint="dump the same prompt, and only the prompt, on both sides",
        )
