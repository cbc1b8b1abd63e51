"""Nothing was compared: the two sides have no point in common.

## What it checks
The output of at least one module exists on both sides under the same name and with the same shape.

## Why it matters
A comparison of nothing does not prove that the sides agree.

## How to fix
- Dump the same prompt on both sides, and only the prompt: a trainer's forward pass covers prompt and response, an engine's
  prefill covers the prompt.
- ckptcheck matches names in the plain Hugging Face form. Where projections are fused, name the checkpoint as well, so that its
  config says how to split them.

## When it can be wrong
Never: there was nothing to compare.

## Seen in
the verl/msProbe guide to consistency dumps
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.localize.localization import Localization
from ckptcheck.text.formatting import count


@rule(
    "LOC003",
    "nothing-compared",
    severity="error",
    on="localization",
    when=lambda evidence: not (evidence.layout and evidence.layout.different),
)
def check(evidence: Localization) -> Iterator[Problem]:
    if evidence.points:
        return
    reference_names, other_names = evidence.unmatched.values()
    shared_names = [name for name in reference_names if name in evidence.other]
    if shared_names:
        reference_shape, other_shape = (
            list(activations[shared_names[0]].shape) for activations in (evidence.reference, evidence.other)
        )
        detail = (
            f"{count(len(shared_names), 'module output has', 'module outputs have')} another shape "
            f"on the other side, such as {shared_names[0]}:"
            f" {reference_shape} and {other_shape}"
        )
    else:
        detail = (
            f"{evidence.sides[0]} has {count(len(reference_names), 'module output')}, {evidence.sides[1]} {len(other_names)},"
            " and no module name occurs on both sides"
        )
    yield Problem(f"nothing was compared: {detail}", hint="dump the same prompt, and only the prompt, on both sides")
