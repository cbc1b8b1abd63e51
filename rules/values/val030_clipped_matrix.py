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

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.middle_pieces import find_clipped_matrices
from ckptcheck.values.detectors.roles import group_by_file


@rule("VAL030", "clipped-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    # codes of a small format end at its largest number, and many are there: VAL036 says what they are
    codes = {name for found in find_bare_codes(ckpt) for name in found.names}
    clipped = [matrix for matrix in find_clipped_matrices(ckpt) if matrix.name not in codes]
    for file, (first, *others) in group_by_file(ckpt, clipped).items():
        bound = ckpt.values.tensors[first.name].absmax
        more = (
            f"; so are those of {count(len(others), 'more matrix', 'more matrices')}: "
            f"{join_truncated([matrix.name for matrix in others])}"
        )
        yield Problem(
            f"{100 * first.cut_off:.2g} % of its numbers are ± {bound:.4g}, its largest magnitude, as if they were cut off there"
            f"{more if others else ''}",
            file=file,
            key=first.name,
            hint="convert again, with a scale for the largest weights; ckptcheck diff against the source shows what differs",
            names=tuple(matrix.name for matrix in (first, *others)),
        )
    ckpt.require_values()
