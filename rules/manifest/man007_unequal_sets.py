"""Two sets of weights, one known by its digests alone, are not the same.

## What it checks
`ckptcheck diff` with a manifest or an identity file on one side: each plain tensor is on both sides, with the same dtype and
shape. Tensors of one dtype and shape are compared by their digests: where these differ, they hold other bits.

## Why it matters
The two are not the same weights: one lost or gained a tensor, was cast or quantized, or has other values. A digest does not say how
far they are apart, nor why: a step of training and a damaged file look alike here.

## How to fix
Compare the two checkpoints themselves: `ckptcheck diff` names the cause, and compares across dtypes.

## When it can be wrong
An export in another dtype is meant to differ: take the manifest of the export. Two different tensors have one digest with a
probability of about 2^-62.

## Seen in
sigstore/model-transparency: `Hash mismatch for` is all that digests tell
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.compare.known_weights import KnownComparison
from ckptcheck.text.formatting import count, join_truncated

ONE_SET = "the two are not one set; ckptcheck diff of the checkpoints themselves compares across dtypes"
CAUSE = "digests do not say why; ckptcheck diff of the two checkpoints themselves names the cause"


@rule("MAN007", "unequal-sets", severity="error", on="known-weights")
def check(comparison: KnownComparison) -> Iterator[Problem]:
    first, second = comparison.first.target, comparison.second.target
    found = comparison.difference
    for names, difference, hint in (
        (found.changed, f"other contents in {second} than in {first}", CAUSE),
        (found.reformed, f"another dtype or shape in {second} than in {first}", ONE_SET),
        (found.missing, f"no counterpart in {second}", ONE_SET),
        (found.new, f"no counterpart in {first}", ONE_SET),
    ):
        if names:
            yield Problem(
                f"{count(len(names), 'tensor has', 'tensors have')} {difference}: {join_truncated(names)}",
                key=names[0],
                names=tuple(names),
                hint=hint,
            )
