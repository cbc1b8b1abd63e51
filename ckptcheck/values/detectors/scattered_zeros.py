"""Finds matrices of which many single numbers are zero, where their siblings have few zeros.

Of the matrices of the layers of seven trained models at most 0.6 % of the numbers are zero, and 13 % of one
that was rounded to 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.values.detectors.middle_pieces import are_exceptions, list_kinds, read_all_over, read_middle_pieces
from ckptcheck.values.detectors.zeroed_blocks import find_zero_blocks
from ckptcheck.values.detectors.zeroed_columns import find_zero_columns

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_ZEROS, MAX_SOUND = 0.3, 0.15
"""Share of zeros from which a matrix is doubted, and up to which its siblings are sound."""
SMALLEST = 0.05
"""The smallest number that is not zero, as a share of the median: what is rounded to a few levels, or pruned by magnitude, has none
that is as small."""


@dataclass(frozen=True)
class ScatteredZeros:
    """A matrix of which many numbers are zero."""

    name: str
    share: float


def find_scattered_zeros(ckpt: Checkpoint) -> list[ScatteredZeros]:
    """Return the matrices with many zeros among numbers of all sizes, where most of their siblings have few.

    Those with whole blocks or columns of zeros are left out. Raises Skip if a file has shrunk, OSError if reading fails.
    """
    import numpy as np

    pieces, found = read_middle_pieces(ckpt), []
    for kind in list_kinds(ckpt):
        shares = {name: pieces[name].zeros / pieces[name].number for name in kind}
        suspects = [name for name, share in shares.items() if share >= MIN_ZEROS]
        sound = sum(share <= MAX_SOUND for share in shares.values())
        if not are_exceptions(len(suspects), sound):
            continue
        for name in suspects:
            values = np.abs(read_all_over(ckpt, name))
            nonzero = values[values > 0]
            share = 1 - nonzero.size / values.size
            if share >= MIN_ZEROS and nonzero.size and nonzero.min() < SMALLEST * np.median(nonzero):
                found.append(ScatteredZeros(name, share))
    if not found:
        return []
    blocks = {name for blocks in find_zero_blocks(ckpt).values() for block in blocks for name in block.tensors}
    return [matrix for matrix in found if matrix.name not in blocks | find_zero_columns(ckpt).keys()]
