"""Where two matrices differ: how many elements, in which rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.view import pieces
from ckptcheck.phrase import ranges
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

MOST_RUNS = 32
"""Runs of rows or columns that are still called a part; more of them are scattered."""


@dataclass(frozen=True, eq=False)
class Difference:
    """rows, columns: numbers of those with any difference. first, last: places in row-major order. number: of elements."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    first: int
    last: int
    number: int


def difference(expected: NDArray[Any], actual: NDArray[Any]) -> Difference | None:
    """Compare in pieces; None where every bit is equal."""
    height, width = actual.shape
    rows, columns = np.zeros(height, bool), np.zeros(width, bool)
    number = 0
    for low, high in pieces((height, width)):
        differs = expected[low:high] != actual[low:high]
        rows[low:high] = differs.any(axis=1)
        columns |= differs.any(axis=0)
        number += int(np.count_nonzero(differs))
    if not number:
        return None
    at = np.flatnonzero(rows)
    top, bottom = int(at[0]), int(at[-1])
    first = top * width + int((expected[top] != actual[top]).argmax())
    last = bottom * width + width - 1 - int((expected[bottom] != actual[bottom])[::-1].argmax())
    return Difference(at, np.flatnonzero(columns), first, last, number)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a matrix: words for it, and a function that cuts it out of any matrix of that shape."""

    words: str
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    flat: tuple[int, int] | None = None

    def of(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Cut it out."""
        if self.flat is not None:
            first, last = self.flat
            width = matrix.shape[1]
            rows: NDArray[Any] = matrix[first // width : last // width + 1].reshape(-1)
            start = first - first // width * width
            return rows[start : start + last - first + 1]
        part = matrix if self.rows is None else matrix[self.rows]
        return part if self.columns is None else part[:, self.columns]


def parts(unit: Unit, where: Difference) -> Iterator[Part]:
    """The parts of a matrix that all differences may be confined to, smallest words first; none where they are everywhere."""
    height, width = unit.actual.shape
    some_rows = len(where.rows) < height and _runs(where.rows) <= (MOST_RUNS if width > 1 else 2)
    some_columns = len(where.columns) < width and _runs(where.columns) <= MOST_RUNS
    row_words = f"rows {ranges(map(int, where.rows))} of {height:,}{_rank(unit, where.rows, height)}"
    column_words = f"columns {ranges(map(int, where.columns))} of {width:,}{_rank(unit, where.columns, width)}"
    if width == 1:
        row_words = row_words.replace("rows", "elements", 1)
    if some_rows:
        yield Part(row_words, rows=where.rows)
    if some_columns:
        yield Part(column_words, columns=where.columns)
    if some_rows and some_columns:
        yield Part(f"{row_words}, {column_words}", rows=where.rows, columns=where.columns)
    if width > 1 and where.last - where.first + 1 < height * width:
        words = f"elements {where.first:,} to {where.last:,} of {height * width:,} (row by row)"
        yield Part(words, flat=(where.first, where.last))


def _runs(numbers: NDArray[np.int64]) -> int:
    return 1 + int(np.count_nonzero(np.diff(numbers) != 1))


def _rank(unit: Unit, numbers: NDArray[np.int64], length: int) -> str:
    """Which tensor-parallel rank's shard it is, where it is exactly one."""
    for ranks in unit.sides.geometry.ranks(length):
        rank, rest = divmod(int(numbers[0]), length // ranks)
        if not rest and len(numbers) == length // ranks and _runs(numbers) == 1:
            return f" (the shard of rank {rank} of {ranks})"
    return ""


def described(unit: Unit, where: Difference) -> str:
    """Say what a difference looks like: how much of it, how large, where."""
    total = unit.actual.size
    height, width = unit.actual.shape
    share = 100 * where.number / total
    text = f"{where.number:,} of {total:,} elements differ ({share:.3g} %)"
    if unit.numeric:
        largest, sums = 0.0, np.zeros(3)
        broken = 0
        for low, high in pieces((height, width)):
            with np.errstate(invalid="ignore", over="ignore"):
                e = decode(unit.dtype, unit.expected[low:high]).astype(np.float64)
                a = decode(unit.dtype, unit.actual[low:high]).astype(np.float64)
                fine = np.isfinite(e) & np.isfinite(a)
                broken += int(np.count_nonzero(~np.isfinite(a)))
                e, a = e[fine], a[fine]
                if e.size:
                    largest = max(largest, float(np.abs(a - e).max()))
                    sums += ((e * a).sum(), (e * e).sum(), (a * a).sum())
        text += f", by at most {largest:.3g}"
        if sums[1] > 0 and sums[2] > 0:
            text += f", cosine {sums[0] / np.sqrt(sums[1]) / np.sqrt(sums[2]):.4f}"
        if broken:
            text += f", {broken:,} are NaN or Inf"
    if len(where.rows) < height:
        text += f", in rows {ranges(map(int, where.rows), most=4)} of {height:,}"
    if len(where.columns) < width:
        text += f", in columns {ranges(map(int, where.columns), most=4)} of {width:,}"
    return text
