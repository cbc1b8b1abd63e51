"""Rows of a vocabulary that one rank held, twice: told by the beginnings of rows that the value pass has kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ckptcheck.rule import Skip
from ckptcheck.values.compare import same_pieces
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

RANKS = (2, 4, 8)
"""Vocabulary-parallel ranks, as they are common."""
LEAST = 16
"""Rows below which a part is too small to speak of; so many of a larger one are compared byte by byte."""


@dataclass(frozen=True)
class Twice:
    """Two parts of a matrix with the same rows: the first row of each, and how many they are."""

    first: int
    second: int
    rows: int

    def twin(self, row: int) -> int | None:
        """Return the row of the other part that stands where this one does; None for rows of neither."""
        for here, there in ((self.first, self.second), (self.second, self.first)):
            if here <= row < here + self.rows:
                return there + row - here
        return None


def held_twice(ckpt: Checkpoint, name: str) -> list[Twice]:
    """Return the parts of an embedding or a head, as 2, else 4, else 8 ranks would hold it, that have the same rows.

    Rows that are mostly one and the same (zero, reserved) are left out. Raises Skip where the values could not be read, OSError
    where reading fails.
    """
    tensor = ckpt.tensors[name]
    if not tensor.has_rows:
        return []
    if name not in ckpt.values.row_marks:  # its shard could not be read: other rules say so
        raise Skip(f"{name} could not be read")
    import numpy as np  # not before values are read: headers need none

    marks = np.frombuffer(ckpt.values.row_marks[name], "<u8")
    peaks = np.frombuffer(ckpt.values.row_peaks[name], FORMATS[tensor.dtype].unsigned)
    for ranks in RANKS:
        rows = len(marks) // ranks
        if rows < LEAST or rows * ranks != len(marks):
            break
        found = []
        for first, second in combinations(range(0, len(marks), rows), 2):
            if (
                marks[first] == marks[second]
                and np.array_equal(marks[first : first + rows], marks[second : second + rows])
                and np.array_equal(peaks[first : first + rows], peaks[second : second + rows])
                and 2 * len(np.unique(marks[first : first + rows])) > rows
                and _same(ckpt, name, Twice(first, second, rows))
            ):
                found.append(Twice(first, second, rows))
        if found:
            return found
    return []


def _same(ckpt: Checkpoint, name: str, twice: Twice) -> bool:
    """Whether some of the rows are the same byte for byte."""
    nbytes = ckpt.tensors[name].nbytes // ckpt.tensors[name].shape[0]
    return all(
        same_pieces(ckpt, (name, (twice.first + row) * nbytes), (name, (twice.second + row) * nbytes), nbytes)
        for row in range(0, twice.rows, twice.rows // LEAST)
    )
