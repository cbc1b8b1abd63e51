"""Finds matrices of the layers whose numbers all have one magnitude, by a few short pieces of each.

The first piece of a sound matrix has many magnitudes, so one read is enough; any other matrix takes more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.values.detectors.middle_pieces import (
    SHORT_PIECE,
    MiddlePiece,
    are_exceptions,
    list_layer_projections,
    measure_piece,
    read_middle_pieces,
    read_piece,
)
from ckptcheck.values.detectors.roles import name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

QUARTERS = (0.25, 0.5, 0.75)
"""Positions of the pieces of a suspicious matrix."""
MAX_ZEROS = 0.5
"""A piece with a larger share of zeros says nothing: the matrix is sparse or damaged."""
MANY_MAGNITUDES = 16
"""A piece with this many magnitudes has many: a 4-bit weight has 8 in each block, and its blocks differ."""


def find_single_magnitudes(ckpt: Checkpoint) -> list[str]:
    """Return the matrices in whose pieces all nonzero numbers have one magnitude, while most siblings have many.

    Siblings are the same matrix in other layers: in binary and ternary models they have one magnitude too.
    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    import numpy as np

    pieces, siblings = read_middle_pieces(ckpt), dict[str, list[str]]()
    for name in list_layer_projections(ckpt):
        siblings.setdefault(name_pattern(name), []).append(name)
    found = []
    for names in siblings.values():
        suspects = [name for name in names if _find_magnitude(pieces[name])]
        if not suspects:
            continue
        many = sum(
            len(np.unique(np.abs(read_piece(ckpt, name, 0.5, SHORT_PIECE)))) >= MANY_MAGNITUDES for name in names
        )
        if are_exceptions(len(suspects), many):
            found += [
                name
                for name in suspects
                if {_find_magnitude(piece) for piece in _read_quarters(ckpt, name)} == {_find_magnitude(pieces[name])}
            ]
    return found


def _read_quarters(ckpt: Checkpoint, name: str) -> list[MiddlePiece]:
    """Measure short pieces behind the first, second and third quarter of a matrix."""
    return [measure_piece(read_piece(ckpt, name, place, SHORT_PIECE)) for place in QUARTERS]


def _find_magnitude(piece: MiddlePiece) -> float:
    """Return the magnitude of all nonzero numbers of a piece; 0 if they have several, or most are zero."""
    return piece.magnitude if piece.zeros <= MAX_ZEROS * piece.number else 0.0
