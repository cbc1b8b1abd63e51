"""The two sides gave the same tokens other position ids.

## What it checks
The position ids that the rotary embedding or the layers were given, token by token; of vision-language models those of time, height
and width. A shift of a whole sequence is no difference, because rotary embeddings depend on distances alone.

## Why it matters
Attention differs from the first layer on, while every weight is right. In a vision-language model the ids of an image's tokens
depend on the size of its grid, and each side computes them itself.

## How to fix
- Padding on the left: count positions from the first real token on.
- Packed sequences: let positions start at 0 in each.
- Vision-language models (multimodal rotary embedding): give both sides the same grid of each image; where the response is cut off,
  cut the last axis of `position_ids` (`[:, :, :-response_length]`).

## When it can be wrong
A model without rotary embeddings that ignores its position ids.

## Seen in
the verl/msProbe guide to consistency dumps (`qwen2vl mrope`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization


@rule(
    "LOC009",
    "different-positions",
    severity="error",
    on="localization",
    when=lambda evidence: evidence.layout is not None,
)
def check(evidence: Localization) -> Iterator[Problem]:
    assert evidence.layout is not None
    if evidence.layout.positions:
        yield Problem(evidence.layout.positions, hint="compare how each side counts positions, before any weight")
