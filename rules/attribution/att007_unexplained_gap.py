"""A good part of the gap has no cause that any rung shows.

## What it checks
What is left of the excess over the floor when every rung that could be tried was.

## Why it matters
Unknown is not harmless. It is said so that nobody takes the causes that were found for all there are.

## How to fix
See which rungs were skipped, and give what they need: a trainer, an engine, recorded distributions, versions. Then
`ckptcheck parity localize` looks for the first module that differs.

## When it can be wrong
With a floor that was assumed and not measured, what is left may be the floor: `ckptcheck parity calibrate` measures it.

## Seen in
training jobs whose teams stopped at the first cause
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.attribution.ladder import EXPLAINED
from ckptcheck.attribution.trace import Attribution
from ckptcheck.phrase import count


@rule("ATT007", "unexplained-gap", severity="warning", on="attribution", when=lambda seen: bool(seen.climb.tokens))
def check(seen: Attribution) -> Iterator[Problem]:
    climb = seen.climb
    if climb.healthy or climb.explained >= EXPLAINED or climb.left <= seen.limit:
        return
    skipped = [step.name for step in climb.steps if step.skipped]
    left = 1 - max(0.0, climb.explained)
    text = (
        f"the cause of {left:.0%} of the gap is unknown: mean |Δ| is {climb.left:.3g} nats with all causes taken away"
    )
    if skipped:
        text += f"; {count(len(skipped), 'rung was', 'rungs were')} skipped: {', '.join(skipped)}"
    hint = (
        "give what the skipped rungs need"
        if skipped
        else "ckptcheck parity localize names the first module that differs"
    )
    yield Problem(text, hint=hint)
