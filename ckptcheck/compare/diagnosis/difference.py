"""Locates where two matrices differ, and describes it in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.inputs import tp_sizes
from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import row_ranges
from ckptcheck.text.formatting import format_ranges
from ckptcheck.values.dtypes import decode_float64

MAX_RUNS = 32
"""Contiguous runs of rows or columns that still count as one region; more runs are scattered differences."""


class DifferenceExtent(msgspec.Struct, frozen=True, eq=False):
    """Where two matrices differ."""

    # Indices of the rows and columns with any difference.
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    # Row-major index of the first and of the last differing element.
    first: int
    last: int
    # Number of differing elements.
    count: int


def locate_difference(expected: NDArray[Any], actual: NDArray[Any]) -> DifferenceExtent | None:
    """Compare two matrices in chunks; None if every bit is equal."""
    height, width = actual.shape
    rows, columns = np.zeros(height, bool), np.zeros(width, bool)
    number = 0
    for low, high in row_ranges((height, width)):
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
    return DifferenceExtent(at, np.flatnonzero(columns), first, last, number)


class MatrixRegion(msgspec.Struct, frozen=True, eq=False):
    """A region of a matrix: some rows, some columns, or a run of elements."""

    # How a sentence names it.
    words: str
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    flat: tuple[int, int] | None = None

    def extract(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Return the elements of this region."""
        if self.flat is not None:
            first, last = self.flat
            width = matrix.shape[1]
            rows: NDArray[Any] = matrix[first // width : last // width + 1].reshape(-1)
            start = first - first // width * width
            return rows[start : start + last - first + 1]
        part = matrix if self.rows is None else matrix[self.rows]
        return part if self.columns is None else part[:, self.columns]


def candidate_regions(pair: MatrixPair, extent: DifferenceExtent) -> Iterator[MatrixRegion]:
    """Yield the regions that contain all differences, simplest first; nothing if the differences are everywhere."""
    height, width = pair.actual.shape
    some_rows = len(extent.rows) < height and _count_runs(extent.rows) <= (MAX_RUNS if width > 1 else 2)
    some_columns = len(extent.columns) < width and _count_runs(extent.columns) <= MAX_RUNS
    row_words = f"rows {format_ranges(map(int, extent.rows))} of {height:,}{_describe_rank(pair, extent.rows, height)}"
    column_words = (
        f"columns {format_ranges(map(int, extent.columns))} of {width:,}{_describe_rank(pair, extent.columns, width)}"
    )
    if width == 1:
        row_words = row_words.replace("rows", "elements", 1)
    if some_rows:
        yield MatrixRegion(row_words, rows=extent.rows)
    if some_columns:
        yield MatrixRegion(column_words, columns=extent.columns)
    if some_rows and some_columns:
        yield MatrixRegion(f"{row_words}, {column_words}", rows=extent.rows, columns=extent.columns)
    if width > 1 and extent.last - extent.first + 1 < height * width:
        words = f"elements {extent.first:,} to {extent.last:,} of {height * width:,} (row by row)"
        yield MatrixRegion(words, flat=(extent.first, extent.last))


def _count_runs(numbers: NDArray[np.int64]) -> int:
    return 1 + int(np.count_nonzero(np.diff(numbers) != 1))


def _describe_rank(pair: MatrixPair, numbers: NDArray[np.int64], length: int) -> str:
    """Return words for the tensor-parallel rank whose shard is exactly these rows or columns; "" if it is no rank's."""
    for ranks in tp_sizes(length):
        rank, rest = divmod(int(numbers[0]), length // ranks)
        if not rest and len(numbers) == length // ranks and _count_runs(numbers) == 1:
            return f" (the shard of rank {rank} of {ranks})"
    return ""


def describe_difference(pair: MatrixPair, extent: DifferenceExtent) -> tuple[str, float | None]:
    """Describe a difference: how many elements, how large, where."""
    total = pair.actual.size
    height, width = pair.actual.shape
    share = 100 * extent.count / total
    text, cosine = f"{extent.count:,} of {total:,} elements differ ({share:.3g} %)", None
    if pair.is_float:
        largest, sums = 0.0, np.zeros(3)
        not_finite = 0
        for low, high in row_ranges((height, width)):
            with np.errstate(invalid="ignore", over="ignore"):
                e = decode_float64(pair.dtype, pair.expected[low:high])
                a = decode_float64(pair.dtype, pair.actual[low:high])
                fine = np.isfinite(e) & np.isfinite(a)
                not_finite += int(np.count_nonzero(~np.isfinite(a)))
                e, a = e[fine], a[fine]
                if e.size:
                    largest = max(largest, float(np.abs(a - e).max()))
                    sums += ((e * a).sum(), (e * e).sum(), (a * a).sum())
        text += f", by at most {largest:.3g}"
        if sums[1] > 0 and sums[2] > 0:
            cosine = float(sums[0] / np.sqrt(sums[1]) / np.sqrt(sums[2]))
            text += f", cosine {cosine:.4f}"
        if not_finite:
            text += f", {not_finite:,} are NaN or Inf"
    if len(extent.rows) < height:
        text += f", in rows {format_ranges(map(int, extent.rows), most=4)} of {height:,}"
    if len(extent.columns) < width:
        text += f", in columns {format_ranges(map(int, extent.columns), most=4)} of {width:,}"
    return text, cosine
