"""Detects rows in the wrong place: shifted, rotated, or in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import MatrixView, row_ranges
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.text.formatting import count

WINDOW = 8
"""Elements by which a row (of a matrix) or a run (of a vector) is recognized."""


def find_row_shift(pair: MatrixPair, view: MatrixView) -> Cause | None:
    """Find by how many rows all rows from one on are shifted. The rows that moved in may hold anything."""
    actual = pair.actual
    height, width = actual.shape
    if height < 2 or height * width < 2 * WINDOW or (width == 1 and height < 2 * WINDOW):
        return None
    first = _first_difference(view, actual)
    if first is None:
        return None
    for step in _likely_shifts(view, actual, first):
        start, stop = max(first, -step), min(height, height - step)
        if step < 0:
            start = max(first - step, first)
        if (
            not first
            and _is_shifted(view, actual, start, stop, step)
            and _is_shifted(view, actual, *_rotated_rows(step, height))
        ):
            turn = step % height
            return Cause("rows-shifted", f"rows are rotated by {turn}: row i holds what belongs in row i + {turn}")
        moved = stop - start
        if moved < 2 or 4 * moved < 3 * (height - first):
            continue
        if not _is_shifted(view, actual, start, stop, step) or _all_equal(actual[start:stop]):
            continue
        from_row = f" from row {first} on" if first else ""
        if step > 0:
            return Cause(
                "rows-shifted", f"rows are moved up by {step}{from_row}: row i holds what belongs in row i + {step}"
            )
        return Cause(
            "rows-shifted", f"rows are moved down by {-step}{from_row}: row i holds what belongs in row i - {-step}"
        )
    return None


def _likely_shifts(view: MatrixView, actual: NDArray[Any], first: int) -> list[int]:
    """Return the likely shifts: where rows of the actual tensor stand in the source."""
    height, width = actual.shape
    if width >= 2:
        columns = np.unique(np.linspace(0, width - 1, WINDOW).astype(np.int64))
        source_parts = view.pick(np.arange(height, dtype=np.int64)[:, None], columns[None])
        actual_parts = actual[:, columns]
    else:
        source_parts = np.lib.stride_tricks.sliding_window_view(
            view.pick(np.arange(height, dtype=np.int64), np.zeros(1, np.int64)), WINDOW
        )
        actual_parts = np.lib.stride_tricks.sliding_window_view(actual[:, 0], WINDOW)
    if first >= len(actual_parts):
        return []
    votes: dict[int, int] = {}
    for row in np.unique(np.linspace(first, len(actual_parts) - 1, 7).astype(np.int64)):
        places = np.flatnonzero((source_parts == actual_parts[row]).all(axis=1))
        for place in places[:16]:
            votes[int(place - row)] = votes.get(int(place - row), 0) + 1
    return [step for step in sorted(votes, key=lambda step: -votes[step]) if step][:4]


def _first_difference(view: MatrixView, actual: NDArray[Any]) -> int | None:
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    for low, high in row_ranges((actual.shape[0], actual.shape[1])):
        rows = (view.pick(np.arange(low, high, dtype=np.int64)[:, None], columns) != actual[low:high]).any(axis=1)
        if rows.any():
            return low + int(rows.argmax())
    return None


def _is_shifted(view: MatrixView, actual: NDArray[Any], start: int, stop: int, step: int) -> bool:
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    return all(
        np.array_equal(
            view.pick(np.arange(start + low + step, start + high + step, dtype=np.int64)[:, None], columns),
            actual[start + low : start + high],
        )
        for low, high in row_ranges((stop - start, actual.shape[1]))
    )


def _rotated_rows(step: int, height: int) -> tuple[int, int, int]:
    """Return the rows that a rotation brings in from the other end, and their shift."""
    return (height - step, height, step - height) if step > 0 else (0, -step, height + step)


def _all_equal(rows: NDArray[Any]) -> bool:
    """Whether all rows are equal, so that a shift means nothing."""
    return bool((rows == rows[:1]).all())


def find_reordering(pair: MatrixPair) -> Cause | None:
    """Find rows or columns that are all present, but in an order that no layout explains. A hash identifies each row."""
    for axis, noun in ((0, "row"), (1, "column")):
        if pair.actual.shape[axis] < 2 or pair.actual.shape[1 - axis] < 2:
            continue
        was, now = _hashes(pair.expected, axis), _hashes(pair.actual, axis)
        if np.array_equal(np.sort(was), np.sort(now)) and not np.array_equal(was, now):
            moved = int(np.count_nonzero(was != now))
            text = f"the {noun}s are all present, but {count(moved, noun)} of one tensor are in other positions"
            text += ", in an order that no known layout has"
            return Cause("reordered", text, group=noun)
    return None


def _hashes(matrix: NDArray[Any], axis: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row or column, with fixed odd random multipliers."""
    random = np.random.Generator(np.random.PCG64(0))
    keys = random.integers(0, 1 << 63, matrix.shape[1 - axis], np.uint64) * np.uint64(2) + np.uint64(1)
    total = np.zeros(matrix.shape[axis], np.uint64)
    for low, high in row_ranges((matrix.shape[0], matrix.shape[1])):
        part = matrix[low:high].astype(np.uint64)
        part ^= part >> np.uint64(7)
        if axis == 0:
            total[low:high] = (part * keys[None]).sum(axis=1, dtype=np.uint64)
        else:
            total += (part * keys[low:high, None]).sum(axis=0, dtype=np.uint64)
    return total
