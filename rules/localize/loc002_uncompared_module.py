"""Some modules, or all of them, exist on one side only, so ckptcheck did not compare them.

## What it checks
- Every point that one side recorded has a point of the same name and shape on the other side.
- The output of at least one module exists on both sides: else nothing was compared, which is an error.

## Why it matters
- A module that is not compared may be the one that differs. The module that LOC001 names can then be a later one.
- A comparison of nothing does not prove that the sides agree.

## How to fix
- Nothing, where the sides are built differently and the first diverging module does not follow an unmatched one. Else dump the
  same modules on both sides.
- Dump the same prompt on both sides, and only the prompt: a trainer's forward pass covers prompt and response, an engine's prefill
  covers the prompt.
- ckptcheck matches names in the plain Hugging Face form. Where projections are fused, name the checkpoint as well, so that its
  config says how to split them.

## When it can be wrong
It is not a fault by itself: engines fuse modules that trainers keep separate.

## Seen in
the verl/msProbe guide to consistency dumps (shapes have to be aligned first: prompts only, no padding, no split batch)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization
from ckptcheck.text.formatting import count, join_truncated


@rule("LOC002", "uncompared-module", severity="info", on="localization")
def check(evidence: Localization) -> Iterator[Problem]:
    if evidence.layout and evidence.layout.is_fused:
        yield Problem(
            "q, k and v were not compared: both sides have them as one projection, and no config says how to split it",
            hint="name the checkpoint as well",
        )
    if evidence.points:
        yield from _find_unmatched(evidence)
    elif not (evidence.layout and evidence.layout.different):
        yield from _describe_nothing(evidence)


def _find_unmatched(evidence: Localization) -> Iterator[Problem]:
    """Yield the points of each pair of ranks that were not compared, those of several pairs once."""
    reported: set[str] = set()
    for part in evidence.replicas:
        for side, own, other in ((0, part.reference, part.other), (1, part.other, part.reference)):
            names = part.unmatched[part.sides[side]]
            # a point of another shape is named with the first side
            names = [name for name in names if not side or name not in other]
            verb = "was" if len(names) == 1 else "were"
            message = f"{count(len(names), 'module output')} of {part.sides[side]} {verb} not compared: "
            message += join_truncated(names)
            if shaped := [name for name in names if name in other]:
                message += (
                    f"; {shaped[0]} is {list(own[shaped[0]].shape)} here and {list(other[shaped[0]].shape)} there"
                )
            if names and message not in reported:
                reported.add(message)
                yield Problem(message, key=names[0])


def _describe_nothing(evidence: Localization) -> Iterator[Problem]:
    reference_names, other_names = evidence.unmatched.values()
    shared_names = [name for name in reference_names if name in evidence.other]
    if shared_names:
        reference_shape, other_shape = (
            list(activations[shared_names[0]].shape) for activations in (evidence.reference, evidence.other)
        )
        hint = "dump the same prompt, and only the prompt, on both sides"
        detail = (
            f"{count(len(shared_names), 'module output has', 'module outputs have')} another shape "
            f"on the other side, such as {shared_names[0]}:"
            f" {reference_shape} and {other_shape}"
        )
    else:
        hint = "dump the same model on both sides, each module under its own name"
        detail = (
            f"{evidence.sides[0]} has {count(len(reference_names), 'module output')}, {evidence.sides[1]} {len(other_names)},"
            " and no module name occurs on both sides"
        )
    yield Problem(
        f"nothing was compared: {detail}",
        hint=hint,
        severity="error",
    )
