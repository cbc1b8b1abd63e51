"""The numbers of a matrix all have one sign.

## What it checks
Of each weight matrix of the language model's layers 768 numbers are read, in three places. Some are positive and some negative.
Experts, packed and integer matrices, scales, tables of positions and matrices with a side below 32 are left out, and so
are matrices that are mostly zero there.

## Why it matters
A projection mixes both signs; training starts it so and does not end it. Numbers of one sign are magnitudes: the second moments of
Adam saved in place of the weights, an absolute value, a cast to an unsigned type on the way. Every loader takes them.

## How to fix
Export the weights again. Where every matrix is named, look whether an optimizer's state was saved under the weights' names.

## When it can be wrong
A method that constrains weights to be positive (non-negative factorization, some state-space models) has such matrices on purpose:
`--ignore VAL026`. A matrix of which a few in a hundred keep the other sign is not seen.

## Seen in
None of the 210 matrices of SmolLM2-135M's layers has one sign in any of the three places.
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.one_signed import find_one_signed


@rule("VAL026", "one-signed-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    by_file: dict[str, list[str]] = {}
    for name in find_one_signed(ckpt):
        by_file.setdefault(ckpt.tensor_to_file[name], []).append(name)
    for file, names in by_file.items():
        yield Problem(
            f"{count(len(names), 'matrix has', 'matrices have')} numbers of one sign alone, as magnitudes or the second "
            f"moments of an optimizer do: {join_truncated(names)}",
            file=file,
            key=names[0],
            hint="export the weights again",
        )
    ckpt.require_values()
