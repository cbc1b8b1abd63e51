"""Weights were not made from what they are said to be made from.

## What it checks
- The manifest of the weights states what they were made from (`ckptcheck manifest --made-from`). The manifest of that input, which
  `verify --made-from` names, has the weights that the statement means, and so on through the whole chain.
- What a manifest states about its origin is stated of its own weights, and can be read.

## Why it matters
A release is trusted because of the training that it comes from. If a link does not hold, an input was trained on or exchanged after
the next step had read it, or a manifest was put in the place of another.

## How to fix
Find the input as it was when the step ran, or run the step again on the input as it is, and write the manifest again.

## When it can be wrong
The manifest of a Megatron run was written once with `--like` and once without: then the two have no name in common, and the finding
says so.

## Seen in
SLSA provenance, "build from modified source"; no public case of weights is known
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.lineage import Lineage
from ckptcheck.text.formatting import count, join_truncated

HINT = "run the step again on the input as it is, or fetch the input as it was"


@rule("SIG007", "broken-lineage", severity="error", on="lineage")
def check(lineage: Lineage) -> Iterator[Problem]:
    for manifest, what in lineage.trouble.items():
        yield Problem(what, file=manifest, hint="write the manifest of these weights again, with --made-from")
    for link in lineage.links:
        if link.is_same or link.found is None:
            continue
        if link.other_names:
            yield Problem(
                f"it was made from {link.input.name}, whose tensors had {link.input.names or 'other'} names, and {link.found} has "
                "others: nothing can be compared",
                file=link.child,
                hint="write the manifest of the Megatron run as before: with --like, or without",
            )
            continue
        changed = (
            [
                f"{count(len(link.changed), 'tensor')} of {link.found} {'was' if len(link.changed) == 1 else 'were'} "
                f"not in it with these values: {join_truncated(link.changed)}"
            ]
            if link.changed
            else []
        )
        if link.gone and not link.changed:
            changed.append(
                f"{count(link.gone, 'tensor')} that it had {'is' if link.gone == 1 else 'are'} not in {link.found}"
            )
        what = "; ".join(changed) or f"{link.found} has other weights"
        yield Problem(
            f"it was made from other weights than those of {link.found}: {what}",
            file=link.child,
            key=link.changed[0] if link.changed else None,
            hint=HINT,
            names=link.changed,
        )
