"""Some modules are only on one side, so nothing was said about them.

## What it checks
Every point that one side gave out has one of the same name and shape on the other.

## Why it matters
A module that is not compared may be the one that differs: the first that is seen to differ can be one after it.

## How to fix
Nothing, where the sides are built differently and the first diverging module does not follow one of these. Else dump the same
modules on both sides.

## When it can be wrong
It is no fault by itself: engines fuse modules that trainers keep apart.

## Seen in
the verl/msProbe guide to consistency dumps (shapes have to be aligned first: prompts only, no padding, no split batch)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.localize.localization import Localization
from ckptcheck.phrase import count


@rule("LOC002", "unmatched-point", severity="info", on="localization", when=lambda seen: bool(seen.points))
def check(seen: Localization) -> Iterator[Problem]:
    for side, names in seen.unmatched.items():
        other = seen.other if side == seen.sides[0] else seen.reference
        own = seen.reference if side == seen.sides[0] else seen.other
        if not names:
            continue
        shaped = [name for name in names if name in other]
        if shaped and side == seen.sides[1]:
            names = [name for name in names if name not in other]  # told once, from the first side
        if not names:
            continue
        message = f"{count(len(names), 'point')} of {side} {'was' if len(names) == 1 else 'were'} not compared: "
        message += ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        if shaped and side == seen.sides[0]:
            first = shaped[0]
            message += f"; {first} is {list(own[first].shape)} here and {list(other[first].shape)} there"
        yield Problem(message, key=names[0])
