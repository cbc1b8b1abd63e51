"""What a cause would have made of a source: seen element by element where asked, never written out whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
PIECE = 1 << 18
"""Elements that are compared at a time."""


class View(Protocol):
    """A matrix of patterns that is computed where it is looked at."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        ...

    def pick(self, rows: Index, columns: Index) -> NDArray[Any]:
        """The patterns at these places; the two broadcast."""
        ...


@dataclass(frozen=True, eq=False)
class Plain:
    """A matrix as it is."""

    matrix: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        return self.matrix.shape[0], self.matrix.shape[1]

    def pick(self, rows: Index, columns: Index) -> NDArray[Any]:
        """The patterns at these places."""
        picked: NDArray[Any] = self.matrix[rows, columns]
        return picked


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Where each element comes from. rows, columns: new index → old index, None where it stays.

    turned: the elements of the transposed matrix, written out in the shape of the matrix itself.
    code, text: the cause and how a sentence says it.
    """

    code: str
    text: str
    rows: Index | None = None
    columns: Index | None = None
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Arranged:
    """A view whose elements are elsewhere."""

    of: View
    by: Arrangement

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        return self.of.shape

    def pick(self, rows: Index, columns: Index) -> NDArray[Any]:
        """The patterns at these places."""
        if self.by.turned:
            height, width = self.of.shape
            at = rows * width + columns
            rows, columns = at % height, at // height
        if self.by.rows is not None:
            rows = self.by.rows[rows]
        if self.by.columns is not None:
            columns = self.by.columns[columns]
        return self.of.pick(rows, columns)


@dataclass(frozen=True, eq=False)
class Mapped:
    """A view of which every element is changed in the same way."""

    of: View
    change: Callable[[NDArray[Any]], NDArray[Any]]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        return self.of.shape

    def pick(self, rows: Index, columns: Index) -> NDArray[Any]:
        """The patterns at these places."""
        return self.change(self.of.pick(rows, columns))


@dataclass(frozen=True, eq=False)
class Sample:
    """Places at which a guess is tried first: some spread evenly, some where source and find are known to differ."""

    rows: Index
    columns: Index
    found: NDArray[Any]

    @classmethod
    def of(cls, actual: NDArray[Any], expected: NDArray[Any] | None = None, size: int = 192) -> Sample:
        """Choose the places; the same for the same matrices."""
        number = actual.size
        width = max(actual.shape[1], 1)
        at = np.unique(np.linspace(0, number - 1, min(size, number)).astype(np.int64))
        at = np.unique((at + (at * 40503) % max(width, 1)) % number)  # not all in the same columns
        if expected is not None and expected.shape == actual.shape:
            step = max(1, actual.shape[0] // 64)
            where = np.flatnonzero((actual[::step] != expected[::step]).ravel())[:: max(1, number // step // size)][
                :size
            ]
            at = np.unique(np.concatenate([at, (where // width) * step * width + where % width]))
        rows, columns = at // width, at % width
        return cls(rows, columns, actual[rows, columns])

    def fits(self, view: View) -> bool:
        """Whether the view shows at these places what was found there."""
        return bool(np.array_equal(view.pick(self.rows, self.columns), self.found))


def pieces(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """Ranges of rows that hold about PIECE elements each."""
    step = max(1, PIECE // max(shape[1], 1))
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def equal(view: View, actual: NDArray[Any], sample: Sample) -> bool:
    """Whether the view is what was found, in every bit; the sample is tried first."""
    if view.shape != actual.shape or not sample.fits(view):
        return False
    columns = np.arange(actual.shape[1], dtype=np.int64)[None]
    return all(
        np.array_equal(view.pick(np.arange(low, high, dtype=np.int64)[:, None], columns), actual[low:high])
        for low, high in pieces(view.shape)
    )


def same(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Whether two matrices of patterns are equal; in pieces, so that mapped files need no memory."""
    return first.shape == second.shape and all(
        np.array_equal(first[low:high], second[low:high]) for low, high in pieces((first.shape[0], first.shape[1]))
    )
