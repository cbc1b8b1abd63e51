"""Some modules exist on one side only, so ckptcheck did not compare them.

## What it checks
Every point that one side recorded has a point of the same name and shape on the other side.

## Why it matters
A module that is not compared may be the one that differs. The module that LOC001 names can then be a later one.

## How to fix
Nothing, where the sides are built differently and the first diverging module does not follow an unmatched one. Else dump the
same modules on both sides.

## When it can be wrong
It is not a fault by itself: engines fuse modules that trainers keep separate.

## Seen in
the verl/msProbe guide to consistency dumps (shapes have to be aligned first: prompts only, no padding, no split batch)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization
from ckptcheck.text.formatting import count


@rule("LOC002", "unmatched-point", severity="info", on="localization", when=lambda evidence: bool(evidence.points))
def check(evidence: Localization) -> Iterator[Problem]:
    said = set()
    for part in evidence.replicas:
        for problem in _check_ranks(part):
            if (problem.key, problem.message) not in said:
                said.add((problem.key, problem.message))
                yield problem


def _check_ranks(evidence: Localization) -> Iterator[Problem]:
    """Yield the points of one pair of ranks that were not compared."""
    for side, names in evidence.unmatched.items():
        other_activations = evidence.other if side == evidence.sides[0] else evidence.reference
        own_activations = evidence.reference if side == evidence.sides[0] else evidence.other
        if not names:
            continue
        shaped = [name for name in names if name in other_activations]
        if shaped and side == evidence.sides[1]:
            # the message of the first side names these already
            names = [name for name in names if name not in other_activations]
        if not names:
            continue
        message = (
            f"{count(len(names), 'module output')} of {side} {'was' if len(names) == 1 else 'were'} not compared: "
        )
        message += ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        if shaped and side == evidence.sides[0]:
            example = shaped[0]
            own_shape, other_shape = list(own_activations[example].shape), list(other_activations[example].shape)
            message += f"; {example} is {own_shape} here and {other_shape} there"
        yield Problem(message, key=names[0])
