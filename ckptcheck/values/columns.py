"""Columns of a matrix that are zero in every row, as a tensor-parallel rank leaves them that was not gathered.

A rank of a row-parallel layer (o_proj, down_proj) holds columns. In the file its part is a short piece of each row, often
too short to be a block of zeros by itself.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ckptcheck.values.compare import read
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.patterned import is_learned
from ckptcheck.values.roles import is_matrix, is_scale, starts_at_zero
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

PARTS = 8
"""Ranks among which columns are commonly split, at most; 2 and 4 are whole numbers of eighths."""
LEAST = 128
"""Columns below which a part would be too narrow to speak of."""
READ = 1 << 22


def zero_columns(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return matrix → the columns [begin, end) that are zero in all rows, where they are eighths of its columns in a row.

    A last eighth alone is padding. Reads one row of each matrix, all rows where that one shows it. Raises OSError where
    reading fails. Nothing is looked for on the Hub, where each row would be a request.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, stats in ckpt.values.tensors.items():
        if ckpt.source.local is None or name not in ckpt.holders or not _is_judged(stats):
            continue
        lines, columns = prod(stats.shape[:-1]), stats.shape[-1]
        parts = _zero_parts(ckpt, stats, lines // 2, 1)
        if parts and len(parts) < PARTS and parts == _zero_parts(ckpt, stats, 0, lines):
            begin, end = min(parts) * columns // PARTS, (max(parts) + 1) * columns // PARTS
            if max(parts) - min(parts) + 1 == len(parts) and parts != {PARTS - 1}:
                found[name] = begin, end
    return found


def _is_judged(stats: TensorStats) -> bool:
    plain = is_matrix(stats) and not stats.zero and not stats.constant
    wide = stats.shape[-1] >= LEAST and stats.shape[-1] % PARTS == 0 if plain else False
    return wide and is_learned(stats.name) and not is_scale(stats.name) and not starts_at_zero(stats.name)


def _zero_parts(ckpt: Checkpoint, stats: TensorStats, first: int, number: int) -> set[int]:
    """Return which eighths of the columns are zero in all of these rows."""
    import numpy as np

    width = stats.shape[-1] * (FORMATS[stats.dtype].bits // 8)
    step = max(1, READ // width)
    zero = np.ones(PARTS, np.bool_)
    for row in range(first, first + number, step):
        raw = read(ckpt, stats.name, row * width, min(step, first + number - row) * width)
        rows = np.frombuffer(raw[: len(raw) // width * width], np.uint8).reshape(-1, PARTS, width // PARTS)
        zero &= ~rows.any(axis=(0, 2))
        if not zero.any():
            break
    return {int(part) for part in np.flatnonzero(zero)}
