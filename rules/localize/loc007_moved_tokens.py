"""The two sides hold the same tokens in other places, or one of them padded.

## What it checks
ckptcheck matches the tokens of both dumps by their ids, where the dumps have them, else by what the embedding makes of them. It
finds sequences in another order, on other ranks, with padding, or with further tokens after them, and compares each token with
itself.

## Why it matters
The guide compares rank by rank and row by row. Compared like that, sequences in other places differ from the first module on, and
the weights seem to be wrong.

## How to fix
Nothing, to read this report. For other tools: `trainer.balance_batch=False`, `use_remove_padding=True`, `PROMPTS_ONLY=1`, and no
split batches (`ckptcheck preflight` checks them).

## When it can be wrong
Two tokens with the same id and other neighbours can be taken for each other, where sequences are cut into pieces of a few tokens.

## Seen in
the verl/msProbe guide to consistency dumps ("ensure that the data collected corresponds one-to-one on each rank")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization


@rule(
    "LOC007", "moved-tokens", severity="warning", on="localization", when=lambda evidence: evidence.layout is not None
)
def check(evidence: Localization) -> Iterator[Problem]:
    assert evidence.layout is not None
    for move in evidence.layout.moves:
        yield Problem(
            f"{move}; ckptcheck compared each token with itself",
            hint="for tools that compare row by row, dump with balance_batch off, no padding, and prompts only",
        )
