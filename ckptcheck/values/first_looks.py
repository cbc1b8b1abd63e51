"""Looks at a few places of each matrix while its bytes are scanned: enough to rule out that parts of it repeat or are zero.

The places are where eighths or sixteenths of the rows begin, where those of the columns begin in the first row, and where the
eighths of the columns begin in the middle row. If the bytes at the row places all differ, no half, quarter, eighth or sixteenth of
the rows repeats another one; the columns likewise. If none of the middle places is zero, no eighth of the columns is. So a detector
reads the file again only for the few matrices that a look does not clear.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOOK_BYTES = 16
"""Bytes of a place. Narrower parts of a row are not looked at."""
SHARES = 16
"""The most parts into which rows and columns are cut: the eighths of both members of a fused pair such as `gate_up_proj`."""
MIDDLE_SHARES = 8
"""The parts of the middle row: `detectors.zeroed_slices.COLUMN_PARTS`."""
ROWS, COLUMNS, MIDDLE, NONZERO = 1, 2, 4, 8
"""Flags of a matrix: its row places all differ, its column places all differ, none of its middle places is zero, no element in any
place is zero."""
Shape = tuple[int, int]
"""Rows of a matrix, and bytes of a row."""


class Grid(msgspec.Struct, frozen=True):
    """The places of a matrix of some shape."""

    spans: tuple[tuple[int, int], ...]
    """[begin, end) in bytes of the tensor, sorted and disjoint."""
    rows: tuple[int, ...]
    """Where each row place begins in the joined bytes of the spans."""
    columns: tuple[int, ...]
    middle: tuple[int, ...]


@lru_cache(1 << 12)  # a model has a few dozen shapes, and a hostile header any number
def choose_grid(shape: Shape) -> Grid:
    """Return the places of a matrix: none for an axis that cannot be halved, or whose parts are narrower than a place."""
    rows, width = shape
    by_rows = [row * width for row in _starts(rows, 1)] if width >= LOOK_BYTES else []
    by_columns = list(_starts(width, LOOK_BYTES))
    eighth, rest = divmod(width, MIDDLE_SHARES)
    middle = (
        [rows // 2 * width + part * eighth for part in range(MIDDLE_SHARES)]
        if not rest and eighth >= LOOK_BYTES
        else []
    )
    spans: list[tuple[int, int]] = []
    for begin in sorted({*by_rows, *by_columns, *middle}):
        if spans and begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], begin + LOOK_BYTES
        else:
            spans.append((begin, begin + LOOK_BYTES))
    places: dict[int, int] = {}
    joined = 0
    for begin, end in spans:
        places |= {place: joined + place - begin for place in (*by_rows, *by_columns, *middle) if begin <= place < end}
        joined += end - begin
    by_row, by_column, in_middle = (
        tuple(places[start] for start in starts) for starts in (by_rows, by_columns, middle)
    )
    return Grid(tuple(spans), by_row, by_column, in_middle)


def _starts(length: int, least: int) -> range:
    """Return where the shares of an axis begin: as many as divide it, by powers of two, none shorter than `least`."""
    shares = next((shares for shares in (SHARES, 8, 4, 2) if length % shares == 0 and length // shares >= least), None)
    return range(0, length, length // shares) if shares else range(0)


def judge(grid: Grid, looks: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Return the flags of matrices of one shape.

    looks: [matrices, bytes]: the joined bytes of the spans of each.
    width: bytes of an element.
    """
    import numpy as np

    elements = looks.view(f"u{width}") if looks.shape[1] % width == 0 else looks
    flags = np.where(elements.all(axis=1), NONZERO, 0).astype(np.uint8)
    for flag, places in ((ROWS, grid.rows), (COLUMNS, grid.columns), (MIDDLE, grid.middle)):
        if not places:
            continue
        index = np.add.outer(np.array(places), np.arange(LOOK_BYTES)).ravel()
        words = np.ascontiguousarray(looks[:, index]).view("<u8").reshape(len(looks), len(places), 2)
        if flag == MIDDLE:
            cleared = ((words[:, :, 0] | words[:, :, 1]) != 0).all(axis=1)
        else:
            # Different places may get the same number by chance: then the matrix is read again.
            with np.errstate(over="ignore"):
                mixed = np.sort(words[:, :, 0] * np.uint64(0x9E3779B97F4A7C15) + words[:, :, 1], axis=1)
            cleared = (mixed[:, 1:] != mixed[:, :-1]).all(axis=1)
        flags |= np.where(cleared, flag, 0).astype(np.uint8)
    return flags


def cut_spans(grid: Grid, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of the spans that lie in the bytes [begin, end) of the tensor, counted from `begin`."""
    return [
        (max(first, begin) - begin, min(last, end) - begin)
        for first, last in grid.spans
        if first < end and last > begin
    ]


def count_bytes(spans: Iterable[tuple[int, int]]) -> int:
    """Return the joined bytes of spans."""
    return sum(end - begin for begin, end in spans)


def judge_joined(shape: Shape, looks: bytes, width: int) -> int:
    """Return the flags of one matrix from the joined bytes of its spans, and the bytes of an element; 0 if some are missing."""
    import numpy as np

    grid = choose_grid(shape)
    if len(looks) != count_bytes(grid.spans):
        return 0
    return int(judge(grid, np.frombuffer(looks, np.uint8).reshape(1, -1), width)[0])
