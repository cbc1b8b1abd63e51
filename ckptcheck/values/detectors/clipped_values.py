"""Finds matrices whose numbers pile up at one largest magnitude, as clipped numbers do.

A trained matrix has one or two numbers of its largest magnitude: of nine trained models, none has a matrix of the layers in which
more than one in 6,000 is within a thousandth of it. A cast to a format that ends there, or a scale that was too small, leaves a
share of all numbers at the end of the range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.detectors.middle_pieces import list_kinds, read_middle_pieces, read_piece

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_SHARE = 0.01
"""Share of the numbers in the middle of a matrix that has to lie at its largest magnitude."""
MIN_MAGNITUDES = 24
"""Different magnitudes below which the matrix may hold a few levels by design: ternary weights, or up to five bits, unpacked."""


class ClippedMatrix(msgspec.Struct, frozen=True):
    """A matrix whose numbers pile up at its largest magnitude."""

    name: str
    bound: float
    share: float
    """Share of the sampled numbers that lie there."""


def find_clipped_matrices(ckpt: Checkpoint) -> list[ClippedMatrix]:
    """Return the matrices of the layers whose numbers pile up at one largest magnitude.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    import numpy as np

    found, pieces = [], read_middle_pieces(ckpt)
    for name in (name for kind in list_kinds(ckpt) for name in kind):
        share, stats = pieces[name].cut_off / pieces[name].number, ckpt.values.tensors[name]
        if share < MIN_SHARE or stats.nan or stats.inf:
            continue
        if len(np.unique(np.abs(read_piece(ckpt, name, 0.5)))) >= MIN_MAGNITUDES:
            found.append(ClippedMatrix(name, stats.absmax, share))
    return found
