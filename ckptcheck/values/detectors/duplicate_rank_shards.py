"""Finds the vocabulary rows of one rank that a matrix holds twice, by the fingerprints of rows from the value pass."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import have_equal_bytes
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

RANK_COUNTS = (2, 4, 8)
"""Common numbers of vocabulary-parallel ranks."""
MIN_ROWS = 16
"""A part with fewer rows is not judged. Of a larger part this many rows are compared byte by byte."""


class DuplicateShard(msgspec.Struct, frozen=True):
    """Two parts of a matrix that hold the same rows."""

    first: int
    """First row of the first part."""
    second: int
    """First row of the second part."""
    rows: int
    """Rows of each part."""

    def matching_row(self, row: int) -> int | None:
        """Return the row at the same place of the other part; None for rows of neither part."""
        for begin, other_begin in ((self.first, self.second), (self.second, self.first)):
            if begin <= row < begin + self.rows:
                return other_begin + row - begin
        return None


def find_duplicate_rank_shards(ckpt: Checkpoint, name: str) -> list[DuplicateShard]:
    """Return the pairs of parts of an embedding or head that hold the same rows, split among 2, else 4, else 8 ranks.

    Parts that mostly repeat one row (zero, reserved) do not count. Raises Skip if the values could not be read,
    OSError if reading fails.
    """
    tensor = ckpt.tensors[name]
    if not tensor.has_rows:
        return []
    # Other rules report a shard that could not be read.
    if name not in ckpt.values.row_fingerprints:
        raise Skip(f"{name} could not be read")
    # Rules that read headers only must not load numpy.
    import numpy as np

    fingerprints = np.frombuffer(ckpt.values.row_fingerprints[name], "<u8")
    row_max = np.frombuffer(ckpt.values.row_max[name], FORMATS[tensor.dtype].unsigned)
    for ranks in RANK_COUNTS:
        rows = len(fingerprints) // ranks
        if rows < MIN_ROWS or rows * ranks != len(fingerprints):
            break
        duplicates = []
        for first, second in combinations(range(0, len(fingerprints), rows), 2):
            if (
                fingerprints[first] == fingerprints[second]
                and np.array_equal(fingerprints[first : first + rows], fingerprints[second : second + rows])
                and np.array_equal(row_max[first : first + rows], row_max[second : second + rows])
                and 2 * len(np.unique(fingerprints[first : first + rows])) > rows
                and _sampled_rows_equal(ckpt, name, DuplicateShard(first, second, rows))
            ):
                duplicates.append(DuplicateShard(first, second, rows))
        if duplicates:
            return duplicates
    return []


def _sampled_rows_equal(ckpt: Checkpoint, name: str, shard: DuplicateShard) -> bool:
    """Whether MIN_ROWS of the rows, spread evenly, are the same byte for byte."""
    nbytes = ckpt.tensors[name].nbytes // ckpt.tensors[name].shape[0]
    return all(
        have_equal_bytes(ckpt, (name, (shard.first + row) * nbytes), (name, (shard.second + row) * nbytes), nbytes)
        for row in range(0, shard.rows, shard.rows // MIN_ROWS)
    )
