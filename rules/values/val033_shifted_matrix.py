"""The mean of a matrix is far from zero: a number was added to all, or they are magnitudes.

## What it checks
The rule reads 2,048 numbers from the middle of each matrix of attention and of feed-forward blocks. It reports a matrix whose mean
is 0.2 standard deviations or more from zero, there and in 4,096 numbers from all over the matrix, if the same matrix is within 0.12
in three times as many other layers, and in at least three. If three quarters of all matrices, of three kinds or more, are shifted
to the same side by 0.06 standard deviations or more, it reports them all. It looks at no more than 256 matrices of a kind, and does
not look on the Hub.

## Why it matters
A projection has a mean near zero; training leaves it there. A shift adds the sum of all inputs to each output. Weights of 4 or
8 bits that were unpacked with a zero point one step off have it, in one matrix or in all: the model answers, and answers badly.
Numbers of one sign are magnitudes: the second moments of Adam saved in place of the weights, or an absolute value on the way.

## How to fix
Convert again from the unquantized weights. If the weights were unpacked from GPTQ or AWQ, look how the zero points are stored:
GPTQ's first format stores them less one. Where all have one sign, check whether an optimizer's state was saved under the
weights' names. `ckptcheck diff` against the source shows what differs.

## When it can be wrong
- A method may train weights around another mean. The rule is silent if a quarter or more of the layers have it, but not nearly all
  matrices.
- It does not see a shift below 0.2 standard deviations, or below 0.06 if all share it, or one that differs from row to row.
- Measured on eight trained models that packages ship (SmolLM2-135M, Gemma 3 270M, all-MiniLM-L6-v2, AntiBERTy, two of IgLM, two
  of rxnfp; 592 matrices): the mean is at most 0.03 standard deviations from zero, and that of the 2,048 numbers at most 0.1.
- `--ignore VAL033`, or a reason under `[ignore]`, silences it.

## Seen in
vllm-project/vllm#38966 (zero points of GPTQ's second format read as those of the first: every weight is off by its scale)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import count, join_truncated
from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.detectors.byte_compare import require_sampling
from ckptcheck.values.detectors.middle_pieces import find_shifted_matrices
from ckptcheck.values.detectors.roles import group_by_file


@rule("VAL033", "shifted-matrix", severity="warning", on="values", when=lambda ckpt: bool(ckpt.components.layers))
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    require_sampling(ckpt)
    codes = {
        name for found in find_bare_codes(ckpt) for name in found.names
    }  # VAL036's: without a sign they are all shifted
    shifted = [matrix for matrix in find_shifted_matrices(ckpt) if matrix.name not in codes]
    for file, (first, *others) in group_by_file(ckpt, shifted).items():
        more = (
            f"; so are those of {count(len(others), 'more matrix', 'more matrices')}: "
            f"{join_truncated([matrix.name for matrix in others])}"
        )
        cause = "as if a number had been added to all of them"
        hint = "convert again; if they were unpacked, check whether the zero points are one step off"
        if first.sign:
            cause = "and all of one sign, as magnitudes or the second moments of an optimizer are"
            hint = "export the weights again"
        yield Problem(
            f"its numbers are {first.mean:+.4g} on average, {abs(first.shift):.2g} standard deviations from zero, {cause}"
            f"{more if others else ''}",
            file=file,
            key=first.name,
            hint=hint,
            names=tuple(matrix.name for matrix in (first, *others)),
        )
    ckpt.require_values()
