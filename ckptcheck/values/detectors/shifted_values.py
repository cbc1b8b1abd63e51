"""Finds matrices to which a number was added: their mean is far from zero, measured in standard deviations.

Training leaves the mean of a projection near zero. In the 592 matrices of the layers of eight trained models it is at
most 0.03 standard deviations away, and in 2,048 neighbouring numbers of one matrix at most 0.1. A 4-bit unpacking whose
zero point is one step off adds about 0.4; the mean of magnitudes is 1.3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.detectors.bare_codes import find_bare_codes
from ckptcheck.values.detectors.middle_pieces import (
    MiddlePiece,
    are_exceptions,
    list_kinds,
    measure_piece,
    read_all_over,
    read_middle_pieces,
)
from ckptcheck.values.detectors.roles import FEED_FORWARD, KEYS, QUERIES, name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

FUSED = re.compile(r"(^|[._])(qkv_proj|query_key_value|c_attn|Wqkv)\.weight$")
"""Names of matrices that hold queries, keys and values. Usual means of other ones, such as routers, are unknown."""
MIN_SHIFT, MAX_SOUND = 0.2, 0.12
"""Mean, in standard deviations, at or above which a matrix counts as shifted, and at or below which its siblings are
sound."""
MOST, MIN_KINDS, MIN_EVERYWHERE = 0.75, 3, 0.06
"""If all matrices were shifted, this share of them lies on one side, in several kinds, by at least so many standard deviations.
Training may shift one kind; it shifts no matrix by more than half of that."""


class ShiftedMatrix(msgspec.Struct, frozen=True):
    """A matrix to which a number was added."""

    name: str
    mean: float
    deviation: float
    sign: int
    """1 or -1 if all nonzero numbers have that sign; otherwise 0."""

    @property
    def shift(self) -> float:
        """The mean in standard deviations."""
        return self.mean / self.deviation if self.deviation > 0 else 0.0


def find_shifted_matrices(ckpt: Checkpoint) -> list[ShiftedMatrix]:
    """Return the matrices whose mean is far from zero, if the siblings' means are not, or if nearly all means are.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    pieces = read_middle_pieces(ckpt)
    codes = {name for found in find_bare_codes(ckpt) for name in found.names}  # without a sign they are all shifted
    kinds = [
        [_describe(name, pieces[name]) for name in kind if pieces[name].deviation > 0 and name not in codes]
        for kind in list_kinds(ckpt)
        if _is_judged(name_pattern(kind[0]))
    ]
    everywhere = _find_shift_everywhere(kinds)
    suspects = everywhere or [matrix for kind in kinds for matrix in _find_suspects(kind)]
    found = []
    for suspect in suspects:
        matrix = _describe(suspect.name, measure_piece(read_all_over(ckpt, suspect.name)))
        if abs(matrix.shift) >= (MIN_EVERYWHERE if everywhere else MIN_SHIFT):
            found.append(matrix)
    return found


def _describe(name: str, piece: MiddlePiece) -> ShiftedMatrix:
    return ShiftedMatrix(name, piece.mean, piece.deviation, piece.sign)


def _is_judged(pattern: str) -> bool:
    """Whether a matrix belongs to attention or a feed-forward block. pattern: its name with {} for numbers."""
    return any(names.search(pattern) for names in (FEED_FORWARD, QUERIES, KEYS, FUSED))


def _find_shift_everywhere(kinds: list[list[ShiftedMatrix]]) -> list[ShiftedMatrix]:
    """Return the matrices that are shifted to one side, if most are; otherwise none."""
    for side in (1, -1):
        shifted = [[matrix for matrix in kind if side * matrix.shift >= MIN_EVERYWHERE] for kind in kinds]
        number = sum(map(len, shifted))
        if sum(map(bool, shifted)) >= MIN_KINDS and number >= MOST * sum(map(len, kinds)):
            return [matrix for kind in shifted for matrix in kind]
    return []


def _find_suspects(kind: list[ShiftedMatrix]) -> list[ShiftedMatrix]:
    """Return the shifted matrices of a kind, if enough others are sound."""
    suspects = [matrix for matrix in kind if abs(matrix.shift) >= MIN_SHIFT]
    sound = sum(abs(matrix.shift) <= MAX_SOUND for matrix in kind)
    return suspects if are_exceptions(len(suspects), sound) else []
