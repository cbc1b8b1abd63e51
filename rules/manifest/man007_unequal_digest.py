"""Tensors have other contents than those of which only the digests are known.

## What it checks
`ckptcheck diff` with a manifest or an identity file on one side compares each plain tensor by its digest. Tensors of one dtype and
shape whose digests differ hold other bits.

## Why it matters
The two are not the same weights. How far they are apart, and why, no digest says: a step of training and a damaged file look alike
here.

## How to fix
Compare the two checkpoints themselves: `ckptcheck diff` names the cause.

## When it can be wrong
By chance, with a probability of about 2^-62 for a tensor. Weights in another dtype have another digest by design (MAN008).

## Seen in
Stores that keep manifests of checkpoints which were deleted since
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.known_weights import KnownComparison
from ckptcheck.text.formatting import count, join_truncated


@rule("MAN007", "unequal-digest", severity="error", on="known-weights")
def check(comparison: KnownComparison) -> Iterator[Problem]:
    if names := comparison.unequal:
        yield Problem(
            f"{count(len(names), 'tensor has', 'tensors have')} other contents in {comparison.second.target} than in"
            f" {comparison.first.target}: {join_truncated(names)}",
            key=names[0],
            names=tuple(names),
            hint="digests do not say why; ckptcheck diff of the two checkpoints themselves names the cause",
        )
