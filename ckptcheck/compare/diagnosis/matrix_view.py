"""Views that compute what a cause would make of a matrix, element by element, without materializing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.verdict import Cause, Confidence

Index = NDArray[np.int64]
CHUNK_ELEMENTS = 1 << 18
"""Elements that are compared at a time."""


def order_by_group(sizes: tuple[int, ...], groups: int) -> Index:
    """Return the row order that interleaves stacked parts: for each group its share of the first part, of the second, and so on.

    >>> order_by_group((4, 2), 2).tolist()
    [0, 1, 4, 2, 3, 5]
    """
    starts = np.cumsum((0, *sizes[:-1]))
    shares = [
        start + np.arange(size, dtype=np.int64).reshape(groups, -1) for start, size in zip(starts, sizes, strict=True)
    ]
    return np.concatenate(shares, axis=1).reshape(-1).astype(np.int64)


class MatrixView(msgspec.Struct, frozen=True, eq=False):
    """A matrix of bit patterns whose elements are computed when they are read."""

    # Rows, columns.
    shape: tuple[int, int]
    # Returns the patterns at rows and columns, which broadcast.
    pick: Callable[[Index, Index], NDArray[Any]]

    @classmethod
    def of(cls, matrix: NDArray[Any]) -> MatrixView:
        """Return a view of an unchanged matrix."""
        return cls((matrix.shape[0], matrix.shape[1]), lambda rows, columns: matrix[rows, columns])


class Change(msgspec.Struct, frozen=True, eq=False):
    """A cause that says what becomes of every element: of its place, or of its value."""

    # The cause, and how a sentence says it.
    code: str
    text: str
    apply: Callable[[MatrixView], MatrixView]
    confidence: Confidence = "exact"

    @property
    def cause(self) -> Cause:
        """The cause without what it does."""
        return Cause(self.code, self.text, self.confidence)


def move_elements(
    code: str, text: str, *, rows: Index | None = None, columns: Index | None = None, transposed: bool = False
) -> Change:
    """Return a cause that moves elements.

    rows, columns: new index → old index; None if they stay. transposed: the elements of the transposed matrix, written in the
    shape of the matrix itself.
    """

    def apply(source: MatrixView) -> MatrixView:
        def pick(at: Index, across: Index) -> NDArray[Any]:
            if transposed:
                height, width = source.shape
                place = at * width + across
                at, across = place % height, place // height
            return source.pick(at if rows is None else rows[at], across if columns is None else columns[across])

        return MatrixView(source.shape, pick)

    return Change(code, text, apply)


def map_elements(
    code: str, text: str, change: Callable[[NDArray[Any]], NDArray[Any]], confidence: Confidence = "exact"
) -> Change:
    """Return a cause that changes the bit patterns of all elements in the same way."""
    return Change(
        code,
        text,
        lambda source: MatrixView(source.shape, lambda rows, columns: change(source.pick(rows, columns))),
        confidence,
    )


class SamplePoints(msgspec.Struct, frozen=True, eq=False):
    """Positions at which a cause is tested first: some spread evenly, some where expected and actual differ."""

    rows: Index
    columns: Index
    # The actual patterns at these positions.
    actual: NDArray[Any]

    @classmethod
    def choose(cls, actual: NDArray[Any], expected: NDArray[Any], size: int = 192) -> SamplePoints:
        """Choose the positions. The choice is deterministic."""
        number = actual.size
        width = max(actual.shape[1], 1)
        at = np.unique(np.linspace(0, number - 1, min(size, number)).astype(np.int64))
        # Spread them over different columns.
        at = np.unique((at + (at * 40503) % max(width, 1)) % number)
        step = max(1, actual.shape[0] // 64)
        differing = np.flatnonzero((actual[::step] != expected[::step]).ravel())
        where = differing[:: max(1, number // step // size)][:size]
        at = np.unique(np.concatenate([at, (where // width) * step * width + where % width]))
        rows, columns = at // width, at % width
        return cls(rows, columns, actual[rows, columns])

    def fits(self, view: MatrixView) -> bool:
        """Whether the view equals the actual matrix at these positions."""
        return bool(np.array_equal(view.pick(self.rows, self.columns), self.actual))


def row_ranges(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Return ranges [begin, end) of rows that hold about CHUNK_ELEMENTS elements each."""
    step = max(1, CHUNK_ELEMENTS // max(shape[1], 1))
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def view_equals(view: MatrixView, actual: NDArray[Any], sample: SamplePoints) -> bool:
    """Whether the view equals the actual matrix in every bit. The sample is compared first."""
    if view.shape != actual.shape or not sample.fits(view):
        return False
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    return all(
        np.array_equal(view.pick(np.arange(low, high, dtype=np.int64)[:, None], columns), actual[low:high])
        for low, high in row_ranges(view.shape)
    )


def matrices_equal(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether two matrices of patterns are equal; compared in chunks to save memory."""
    return first.shape == second.shape and all(
        np.array_equal(first[low:high], second[low:high]) for low, high in row_ranges((first.shape[0], first.shape[1]))
    )
