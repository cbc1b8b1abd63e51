"""Rows in the wrong place: shifted by some, or in another order altogether."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import View, pieces
from ckptcheck.phrase import count

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

WINDOW = 8
"""Elements by which a row (of a matrix) or a run (of a vector) is known again."""


def shifted(unit: Unit, view: View) -> Cause | None:
    """Say by how many rows all rows from one on are shifted. What moved in at the end or at that row may be anything."""
    actual = unit.actual
    height, width = actual.shape
    if height < 2 or height * width < 2 * WINDOW or (width == 1 and height < 2 * WINDOW):
        return None
    first = _first_difference(view, actual)
    if first is None:
        return None
    for step in _steps(view, actual, first):
        start, stop = max(first, -step), min(height, height - step)
        if step < 0:
            start = max(first - step, first)
        if not first and _moved(view, actual, start, stop, step) and _moved(view, actual, *_rest(step, height)):
            turn = step % height
            return Cause("rows-shifted", f"rows are rotated by {turn}: row i holds what belongs in row i + {turn}")
        moved = stop - start
        if moved < 2 or 4 * moved < 3 * (height - first):
            continue
        if not _moved(view, actual, start, stop, step) or _dull(actual[start:stop]):
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


def _steps(view: View, actual: NDArray[Any], first: int) -> list[int]:
    """By how many rows it may be shifted: where rows of what was found stand in the source."""
    height, width = actual.shape
    if width >= 2:
        columns = np.unique(np.linspace(0, width - 1, WINDOW).astype(np.int64))
        known = view.pick(np.arange(height, dtype=np.int64)[:, None], columns[None])
        found = actual[:, columns]
    else:
        known = np.lib.stride_tricks.sliding_window_view(
            view.pick(np.arange(height, dtype=np.int64), np.zeros(1, np.int64)), WINDOW
        )
        found = np.lib.stride_tricks.sliding_window_view(actual[:, 0], WINDOW)
    if first >= len(found):
        return []
    votes: dict[int, int] = {}
    for row in np.unique(np.linspace(first, len(found) - 1, 7).astype(np.int64)):
        places = np.flatnonzero((known == found[row]).all(axis=1))
        for place in places[:16]:
            votes[int(place - row)] = votes.get(int(place - row), 0) + 1
    return [step for step in sorted(votes, key=lambda step: -votes[step]) if step][:4]


def _first_difference(view: View, actual: NDArray[Any]) -> int | None:
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    for low, high in pieces((actual.shape[0], actual.shape[1])):
        rows = (view.pick(np.arange(low, high, dtype=np.int64)[:, None], columns) != actual[low:high]).any(axis=1)
        if rows.any():
            return low + int(rows.argmax())
    return None


def _moved(view: View, actual: NDArray[Any], start: int, stop: int, step: int) -> bool:
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    return all(
        np.array_equal(
            view.pick(np.arange(start + low + step, start + high + step, dtype=np.int64)[:, None], columns),
            actual[start + low : start + high],
        )
        for low, high in pieces((stop - start, actual.shape[1]))
    )


def _rest(step: int, height: int) -> tuple[int, int, int]:
    """The rows that a rotation brings in from the other end, and by how many they moved."""
    return (height - step, height, step - height) if step > 0 else (0, -step, height + step)


def _dull(rows: NDArray[Any]) -> bool:
    """Whether rows are so alike that being shifted means nothing."""
    return bool((rows == rows[:1]).all())


def reordered(unit: Unit) -> Cause | None:
    """Say that the rows, or the columns, are all there but in an order that no layout explains. Rows are known by a hash."""
    for axis, noun in ((0, "row"), (1, "column")):
        if unit.actual.shape[axis] < 2 or unit.actual.shape[1 - axis] < 2:
            continue
        was, now = _hashes(unit.expected, axis), _hashes(unit.actual, axis)
        if np.array_equal(np.sort(was), np.sort(now)) and not np.array_equal(was, now):
            moved = int(np.count_nonzero(was != now))
            text = f"the {noun}s are all there, but {count(moved, noun)} of one tensor stand elsewhere"
            text += ", in an order that no known layout has"
            return Cause("reordered", text, group=noun)
    return None


def _hashes(matrix: NDArray[Any], axis: int) -> NDArray[np.uint64]:
    """A 64-bit hash of each row or column; odd random multipliers, fixed."""
    random = np.random.Generator(np.random.PCG64(0))
    keys = random.integers(0, 1 << 63, matrix.shape[1 - axis], np.uint64) * np.uint64(2) + np.uint64(1)
    total = np.zeros(matrix.shape[axis], np.uint64)
    for low, high in pieces((matrix.shape[0], matrix.shape[1])):
        part = matrix[low:high].astype(np.uint64)
        part ^= part >> np.uint64(7)
        if axis == 0:
            total[low:high] = (part * keys[None]).sum(axis=1, dtype=np.uint64)
        else:
            total += (part * keys[low:high, None]).sum(axis=0, dtype=np.uint64)
    return total
