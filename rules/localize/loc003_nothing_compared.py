"""Nothing was compared: the two sides have no point in common.

## What it checks
At least one module's output is there on both sides under the same name and with the same shape.

## Why it matters
A comparison of nothing is no proof that the sides agree.

## How to fix
Dump the same prompt on both sides, the prompt only: a trainer's forward goes over prompt and response, an engine's prefill over
the prompt. Names are matched by the plain Hugging Face form; where projections are joined, name the checkpoint as well, so that
its config tells how.

## When it can be wrong
Never: there was nothing.

## Seen in
the verl/msProbe guide to consistency dumps
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.localize.localization import Localization
from ckptcheck.phrase import count


@rule("LOC003", "nothing-compared", severity="error", on="localization")
def check(seen: Localization) -> Iterator[Problem]:
    if seen.points:
        return
    here, there = seen.unmatched.values()
    names = [name for name in here if name in seen.other]
    if names:
        a, b = (list(held[names[0]].shape) for held in (seen.reference, seen.other))
        said = f"{count(len(names), 'point has', 'points have')} another shape on the other side, as {names[0]}: {a} and {b}"
    else:
        said = f"{seen.sides[0]} has {count(len(here), 'point')}, {seen.sides[1]} {len(there)}, and no name is on both"
    yield Problem(f"nothing was compared: {said}", hint="dump the same prompt, and only the prompt, on both sides")
