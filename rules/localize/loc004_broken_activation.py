"""A module gives out NaN or Inf.

## What it checks
The first point at which one side, or both, have a number that is not finite.

## Why it matters
Whatever comes after it is not finite either, and an engine samples from it all the same: it answers with garbage, or with one token
for ever.

## How to fix
On one side only: what that side does to the weights (a scale that is missing, a packed copy, float16 where the model needs
bfloat16). On both: the weights themselves; ckptcheck scan finds them.

## When it can be wrong
Never: such a number is none that a model means to give out here.

## Seen in
vLLM's W8A8 layers after a reload of weights, float16 attention logits beyond 65504
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.localize.localization import Localization


@rule("LOC004", "broken-activation", severity="error", on="localization", when=lambda seen: bool(seen.points))
def check(seen: Localization) -> Iterator[Problem]:
    point = next((point for point in seen.points if point.broken), None)
    if point is not None:
        who = " and ".join(point.broken)
        yield Problem(
            f"{point.name} of {who} gives out numbers that are not finite, from token {point.first} of {point.tokens} on; "
            "no module before it does",
            key=point.name,
        )
