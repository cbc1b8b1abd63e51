"""A link of the chain was not checked, because no manifest of the input was given.

## What it checks
Every input that a manifest of the chain states is the weights of some manifest that `verify --made-from` names; and every manifest
that is named belongs to the chain.

## Why it matters
What a manifest states about its origin is a claim. A chain that ends at an input without a manifest proves nothing about what came
before it; and a manifest that belongs to nothing is probably that of another run.

## How to fix
Add the manifest of the input with `--made-from`.

## When it can be wrong
The first input is a release of somebody else who published no manifest. `ckptcheck manifest` of your copy of it makes one.

## Seen in
SLSA provenance: `resolvedDependencies` without a provenance of their own
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.lineage import Lineage


@rule("SIG008", "unknown-input", severity="warning", on="lineage")
def check(lineage: Lineage) -> Iterator[Problem]:
    for link in lineage.links:
        if link.found is None:
            yield Problem(
                f"it was made from {link.input.name or 'an input without a name'}, of which no manifest was given",
                file=link.child,
                hint="add the manifest of that input with --made-from",
            )
    for name in lineage.unused:
        yield Problem(
            f"nothing in the chain of {lineage.target} was made from these weights",
            file=name,
            hint="leave it out, or add the manifest of the step between",
        )
