"""Many single numbers of a matrix are zero, and of the same matrix in other layers few are.

## What it checks
In each matrix of the layers it reads 2,048 numbers from the middle. It reports those of which 30 % or more are zero, in 4,096
numbers from all over the matrix too, where three times as many of the same matrix in other layers, and at least three, have 15 %
or fewer. Among the numbers that are not zero there have to be small ones. It looks at no more than 256 matrices of a kind, and does
not look on the Hub.

## Why it matters
A trained matrix has hardly any zeros. A mask of dropout, of attention or of a pruning run that was multiplied into the weights of
one layer, or a buffer of which every second element was written, leaves them between numbers of all sizes. Every loader takes them.

## How to fix
Take the matrix from an earlier checkpoint, or save again. If layers were pruned on purpose, say so: `--ignore VAL034`.

## When it can be wrong
- A model of which a few layers alone were pruned at random. Pruning by magnitude, and rounding to a few levels, leave no small
  numbers and are not reported; nor is a model of which a quarter of the layers or more have zeros.
- Blocks, rows and columns of zeros are VAL005's.
- Measured on eight trained models that packages ship (SmolLM2-135M, Gemma 3 270M unpacked from 4 bits, all-MiniLM-L6-v2, AntiBERTy,
  two of IgLM, two of rxnfp; 592 matrices): at most 0.6 % of the 2,048 numbers are zero, and 13 % of those that had 4 bits.
- `--ignore VAL034`, or a reason under `[ignore]`, silences it.

## Seen in
Made by hand from the models above
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.scattered_zeros import ScatteredZeros, find_scattered_zeros


@rule("VAL034", "scattered-zeros", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    by_file: dict[str, list[ScatteredZeros]] = {}
    for matrix in find_scattered_zeros(ckpt):
        by_file.setdefault(ckpt.tensor_to_file[matrix.name], []).append(matrix)
    for file, (first, *others) in by_file.items():
        more = (
            f"; the same holds for {count(len(others), 'more matrix', 'more matrices')}: "
            f"{join_truncated([matrix.name for matrix in others])}"
        )
        yield Problem(
            f"about {100 * first.share:.2g} % of its numbers are zero, here and there, and hardly any of the same matrix in other "
            f"layers{more if others else ''}",
            file=file,
            key=first.name,
            hint="take it from an earlier checkpoint, or save again",
        )
    ckpt.require_values()
