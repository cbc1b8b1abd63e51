"""Two sets of weights, one known by its digests alone, do not have the same tensors.

## What it checks
`ckptcheck diff` with a manifest or an identity file on one side: each plain tensor is on both sides, with the same dtype and shape.

## Why it matters
The two are not the same weights: a tensor was lost or added, or the set was cast or quantized.

## How to fix
Compare the two checkpoints themselves with `ckptcheck diff`, which compares across dtypes.

## When it can be wrong
An export in another dtype is meant to differ: take the manifest of the export.

## Seen in
Exports in bf16 that were held against manifests of fp32 masters
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.known_weights import KnownComparison
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN008", "unlike-set", severity="error", on="known-weights")
def check(comparison: KnownComparison) -> Iterator[Problem]:
    first, second = comparison.first.target, comparison.second.target
    for names, told in (
        (comparison.reformed, f"another dtype or shape in {second} than in {first}"),
        (comparison.missing, f"no counterpart in {second}"),
        (comparison.extra, f"no counterpart in {first}"),
    ):
        if names:
            yield Problem(
                f"{count(len(names), 'tensor has', 'tensors have')} {told}: {join_truncated(names)}",
                key=names[0],
                names=tuple(names),
                hint="the two are not one set; ckptcheck diff of the checkpoints themselves compares across dtypes",
            )
