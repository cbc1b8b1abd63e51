"""The manifest states an origin of the weights that is wrong, or that no other manifest confirms.

## What it checks
- The manifest of the weights states what they were made from (`ckptcheck manifest --made-from`). The manifest of that input,
  which `verify --made-from` names, has the weights that the statement means, and so on through the whole chain.
- The statement of a manifest about its origin is about its own weights, and readable.
- For every input that a manifest of the chain states, `verify --made-from` names the manifest; and every manifest that it names
  belongs to the chain. If not, it is a warning.

## Why it matters
You trust a release because of the training that it comes from. A broken link means that an input changed after the next step had
read it, or that somebody exchanged a manifest. A chain that ends at an input without a manifest proves nothing about what came
before it; a manifest outside of the chain is probably that of another run.

## How to fix
Find the input as it was when the step ran, or run the step again on the input as it is, and write the manifest again. Add the
manifest of an unknown input with `--made-from`.

## When it can be wrong
- The manifest of a Megatron run was written once with `--like` and once without: then the two have no name in common, and the
  finding says so.
- The first input is a release of somebody else who published no manifest. `ckptcheck manifest` of your copy of it makes one.

## Seen in
SLSA provenance, "build from modified source", and `resolvedDependencies` without a provenance of their own; no public case of
weights is known
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.lineage import Lineage, Link
from ckptcheck.text.formatting import count, join_truncated

HINT = "run the step again on the input as it is, or fetch the input as it was"


@rule("SIG003", "broken-lineage", severity="error", on="lineage")
def check(lineage: Lineage) -> Iterator[Problem]:
    for manifest, what in lineage.trouble.items():
        yield Problem(what, file=manifest, hint="write the manifest of these weights again, with --made-from")
    for link in lineage.links:
        if link.found is None:
            what = f"it was made from {link.input.name or 'an input without a name'}, of which no manifest was given"
            yield Problem(what, link.child, hint="add the manifest of that input with --made-from", severity="warning")
        elif not link.is_same:
            yield _describe_break(link, link.found)
    # What cannot be read may be what names the others.
    for name in lineage.unused if not lineage.trouble else ():
        yield Problem(
            f"nothing in the chain of {lineage.target} was made from these weights",
            file=name,
            hint="leave it out, or add the manifest of the step between",
            severity="warning",
        )


def _describe_break(link: Link, found: str) -> Problem:
    """Say how the manifest that was found differs from the input that is stated."""
    if link.other_names:
        return Problem(
            f"it was made from {link.input.name}, whose tensors had {link.input.names or 'other'} names, and {found} has "
            "others: nothing can be compared",
            file=link.child,
            hint="write the manifest of the Megatron run as before: with --like, or without",
        )
    if link.changed:
        what = (
            f"{count(len(link.changed), 'tensor')} of {found} {'was' if len(link.changed) == 1 else 'were'} not in it with these "
            f"values: {join_truncated(link.changed)}"
        )
    elif link.gone:
        what = f"{count(link.gone, 'tensor')} that it had {'is' if link.gone == 1 else 'are'} not in {found}"
    else:
        what = f"{found} has other weights"
    return Problem(
        f"it was made from other weights than those of {found}: {what}",
        file=link.child,
        key=link.changed[0] if link.changed else None,
        hint=HINT,
        names=link.changed,
    )
