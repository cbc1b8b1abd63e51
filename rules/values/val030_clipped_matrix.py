"""The numbers of a matrix pile up at its largest magnitude, as if they were cut off there.

## What it checks
In each matrix of the layers it reads 2,048 numbers from the middle, and reports the matrix if one in a hundred or more lies at
its largest magnitude (within a thousandth), while there are at least 24 different ones. It looks at no more than 256 matrices of a
kind, and does not look on the Hub.

## Why it matters
The bell curve of a trained matrix ends in a few outliers. A cast that saturates (65,504 in F16, 448 in FP8), a scale computed from
other values, or a clamp meant for gradients leaves a wall there. The largest weights matter most, and they are wrong: outputs drift
without a warning.

## How to fix
Convert again from the unquantized weights, with a scale for the largest of them. `ckptcheck diff` against the source counts how
many differ.

## When it can be wrong
- Some methods clip weights on purpose in training, or pack them in a few levels. The rule is silent below 24 levels.
- It does not see a cut in a part of a matrix, at another bound for each row or block, or so far out that it affects fewer than one
  number in a hundred: beyond 2.6 deviations of a normal distribution.
- Measured on nine trained models that packages ship (SmolLM2-135M, Gemma 3 270M, all-MiniLM-L6-v2, AntiBERTy, two of IgLM, three of
  rxnfp; 690 matrices): at most one in 6,000 numbers lies there.
- `--ignore VAL030`, or a reason under `[ignore]`, silences it.

## Seen in
ModelTC/LightCompress#358 (a wrong bound of FP8), dropbox/gemlite#38 (scales so small that weights end outside of FP8's range)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.clipped_values import ClippedMatrix, find_clipped_matrices


@rule("VAL030", "clipped-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    _ = ckpt.values
    if not ckpt.can_sample:
        raise Skip("matrices are read again only on disk, and in an object store with --values")
    by_file: dict[str, list[ClippedMatrix]] = {}
    for matrix in find_clipped_matrices(ckpt):
        by_file.setdefault(ckpt.tensor_to_file[matrix.name], []).append(matrix)
    for file, matrices in by_file.items():
        first = matrices[0]
        yield Problem(
            f"{100 * first.share:.2g} % of its numbers are ± {first.bound:.4g}, its largest magnitude, as if they were cut off "
            "there"
            + (
                f"; so are those of {count(len(matrices) - 1, 'more matrix', 'more matrices')}: "
                f"{join_truncated([matrix.name for matrix in matrices[1:]])}"
                if len(matrices) > 1
                else ""
            ),
            file=file,
            key=first.name,
            hint="convert again, with a scale for the largest weights; ckptcheck diff against the source shows what differs",
        )
    ckpt.require_values()
