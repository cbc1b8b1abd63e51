"""The output of a module contains NaN or Inf.

## What it checks
The first point at which one side, or both, have a number that is not finite.

## Why it matters
Every module after it has non-finite output too, and the engine samples from that all the same: it answers with garbage, or with
one token for ever.

## How to fix
- On one side only: look at what that side does to the weights (a missing scale, a packed copy, float16 where the model needs
  bfloat16).
- On both sides: look at the weights themselves; `ckptcheck scan` finds them.

## When it can be wrong
Never: no model outputs such a number here on purpose.

## Seen in
vLLM's W8A8 layers after a reload of weights, float16 attention logits beyond 65504
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization


@rule("LOC004", "broken-activation", severity="error", on="localization", when=lambda evidence: bool(evidence.points))
def check(evidence: Localization) -> Iterator[Problem]:
    for part in evidence.replicas:
        point = next((point for point in part.points if point.non_finite_sides), None)
        if point is not None:
            sides = " and ".join(point.non_finite_sides)
            yield Problem(
                f"the output of this module contains NaN or Inf on {sides}, from token {point.first_token} of {point.tokens}"
                f" on; no module before it does{f'; on {part.ranks}' if part.ranks else ''}",
                key=point.name,
            )
