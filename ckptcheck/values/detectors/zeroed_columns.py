"""Finds columns of a matrix that are zero in every row, as a tensor-parallel rank that was not gathered leaves them.

A rank of a row-parallel layer (o_proj, down_proj) holds columns. In the file its part is a short piece of each row, often
too short to count as a block of zeros.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.values.detectors.byte_compare import is_cleared, map_pieces, read_patterns
from ckptcheck.values.detectors.roles import is_matrix, is_scale, starts_at_zero
from ckptcheck.values.detectors.structured_tensors import is_learned_weight
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.first_looks import MIDDLE
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

COLUMN_PARTS = 8
"""Parts in which columns are judged: eighths. The parts of 2 or 4 ranks are whole numbers of eighths."""
MIN_COLUMNS = 128
"""A matrix with fewer columns is not judged: its parts would be too narrow."""
READ_BYTES = 1 << 22


def find_zero_columns(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return matrix → [begin, end) of the columns that are zero in all rows, where these are adjacent eighths of its columns.

    The last eighth alone counts as padding. It reads one row of each matrix that the value pass does
    not clear, and all rows if that one is suspicious. Returns
    nothing on the Hub, where each row would be a request. Raises OSError if reading fails.
    """
    tensors = ckpt.values.tensors
    judged = [
        stats
        for name, stats in tensors.items()
        if ckpt.can_sample and not is_cleared(ckpt, name, MIDDLE) and name in ckpt.tensor_to_file and _can_judge(stats)
    ]
    in_the_middle = map_pieces(
        ckpt, lambda stats: _find_zero_parts(ckpt, stats, prod(stats.shape[:-1]) // 2, 1), judged
    )
    zero_columns: dict[str, tuple[int, int]] = {}
    for stats, parts in zip(judged, in_the_middle, strict=True):
        lines, columns = prod(stats.shape[:-1]), stats.shape[-1]
        if parts and len(parts) < COLUMN_PARTS and parts == _find_zero_parts(ckpt, stats, 0, lines):
            begin, end = min(parts) * columns // COLUMN_PARTS, (max(parts) + 1) * columns // COLUMN_PARTS
            if max(parts) - min(parts) + 1 == len(parts) and parts != {COLUMN_PARTS - 1}:
                zero_columns[stats.name] = begin, end
    return zero_columns


def _can_judge(stats: TensorStats) -> bool:
    plain = is_matrix(stats) and not stats.zero and not stats.constant
    wide = stats.shape[-1] >= MIN_COLUMNS and stats.shape[-1] % COLUMN_PARTS == 0 if plain else False
    return wide and is_learned_weight(stats.name) and not is_scale(stats.name) and not starts_at_zero(stats.name)


def _find_zero_parts(ckpt: Checkpoint, stats: TensorStats, first: int, number: int) -> set[int]:
    """Return the eighths of the columns that are zero in `number` rows from row `first`."""
    import numpy as np

    width = stats.shape[-1] * (FORMATS[stats.dtype].bits // 8)
    step = max(1, READ_BYTES // width)
    zero = np.ones(COLUMN_PARTS, np.bool_)
    for row in range(first, first + number, step):
        rows = read_patterns(ckpt, stats.name, row * width, min(step, first + number - row) * width)
        zero &= ~rows.reshape(-1, COLUMN_PARTS, stats.shape[-1] // COLUMN_PARTS).any(axis=(0, 2))
        if not zero.any():
            break
    return {int(part) for part in np.flatnonzero(zero)}
