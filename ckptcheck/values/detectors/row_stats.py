"""Computes statistics of each row of an embedding or a head. A row belongs to a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import nan, pi, sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.linter.rule import Skip
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

STEP_BYTES = 1 << 19
"""Bytes of rows that are processed together, so that their float32 form stays in the cache."""
READ_BYTES = 1 << 23
MIN_CLUSTER_ROWS = 4
"""Fewer rows make no cluster."""
MAX_CLUSTER_SPREAD = 2
"""The sizes of a cluster's rows may vary this many times as much as sizes of rows drawn from one distribution."""
MIN_CLUSTER_GAP = 1.5
"""The smallest row above a cluster is at least this many times as large as the cluster's largest row."""
CANCELLATION_LIMIT = 1e-3
"""If the squared deviations are a smaller share of the sum of squares, a difference of sums in float32 loses them."""


class RowStats(msgspec.Struct, frozen=True, dict=True):
    """Statistics with one float32 entry per row; an entry is NaN or Inf if the row holds any."""

    mean_abs: NDArray[np.float32]
    """Mean magnitude."""
    max_abs: NDArray[np.float32]
    """Largest magnitude."""
    std: NDArray[np.float32]
    """Unbiased standard deviation, as torch computes it."""

    @property
    def finite(self) -> RowStats:
        """The rows without NaN and Inf; other rules report the rest."""
        import numpy as np

        mask = np.isfinite(self.mean_abs)
        return self if mask.all() else RowStats(self.mean_abs[mask], self.max_abs[mask], self.std[mask])

    @cached_property
    def median(self) -> float:
        """The median of the finite rows' mean magnitudes. Raises Skip if no row is finite."""
        import numpy as np

        sizes = self.finite.mean_abs
        if not sizes.size:
            raise Skip("every row holds NaN or Inf")
        return float(np.median(sizes.astype("f8")))  # of two middles it takes the mean

    @property
    def mean(self) -> float:
        """The mean magnitude of the elements of the finite rows; NaN without such a row."""
        return float(self.finite.mean_abs.mean(dtype="f8")) if self.finite.std.size else nan

    @property
    def largest(self) -> float:
        """The largest magnitude in a finite row; NaN without such a row."""
        return float(self.finite.max_abs.max()) if self.finite.std.size else nan

    @property
    def std_range(self) -> tuple[float, float]:
        """The smallest and the largest standard deviation of a finite row; NaN without such a row."""
        std = self.finite.std
        return (float(std.min()), float(std.max())) if std.size else (nan, nan)

    def describe(self) -> str:
        """Return the statistics of the finite rows as text, in the words of NeMo-RL's script."""
        low, high = self.std_range
        return f"mean_abs={self.mean:.6f}, max_abs={self.largest:.6f}, std_range=[{low:.6f}, {high:.6f}]"

    def near_zero(self, threshold: float) -> NDArray[np.bool_]:
        """Return a mask of the rows whose every element is below the threshold in magnitude; NeMo-RL's default is 1e-10."""
        return self.max_abs < threshold

    def identical(self, threshold: float) -> NDArray[np.bool_]:
        """Return a mask of the rows whose standard deviation is below the threshold, NeMo-RL's test for equal elements (1e-8)."""
        return self.std < threshold

    def low_cluster(self, share: float, known: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
        """Return a mask of the rows that form a cluster of small rows of one size; an empty mask if there is no clear cluster.

        Their mean magnitude is below `share` of the median row's, similar among them, and clearly below all other rows.
        Rows that were drawn and never trained have similar sizes: the mean magnitude of n elements of one normal
        distribution varies by sqrt(pi / 2 - 1) / sqrt(n), and weight decay shrinks them all by one factor.
        known: mask of rows to leave out.
        width: elements of a row, n.
        """
        import numpy as np

        low = self.below_median_share(share) & ~known
        sizes = self.mean_abs[low].astype("f8")  # in F32 the square of a size may be too large
        if len(sizes) < MIN_CLUSTER_ROWS:
            return np.zeros_like(low)
        above = np.fmin.reduce(self.mean_abs[~low & ~known], initial=np.inf)
        spread = float(sizes.std() / sizes.mean())
        if spread > MAX_CLUSTER_SPREAD * sqrt(pi / 2 - 1) / sqrt(width) or above < MIN_CLUSTER_GAP * sizes.max():
            return np.zeros_like(low)
        return low

    def below_median_share(self, share: float) -> NDArray[np.bool_]:
        """Return a mask of the rows whose mean magnitude is below this share of the median row's."""
        return self.mean_abs < share * self.median


def may_have_untrained_rows(ckpt: Checkpoint, parts: Iterable[str], near_zero: float, far_below: float) -> bool:
    """Whether any row of a matrix may be untrained, by the `row_max` of the value pass: nothing is read again.

    A row is suspect if the largest magnitude of its first elements is below `near_zero` or below a share of the median
    row's, or if these elements are all the same.
    parts: the tensors that hold the rows of one matrix.
    Raises Skip for packed dtypes, if values are not read, and if no row is finite.
    """
    import numpy as np

    maxima = []
    for name in parts:
        if not ckpt.tensors[name].has_rows:
            raise Skip(f"the rows of {name} are packed")
        row_max = ckpt.values.row_max.get(name)
        # Other rules report a shard that could not be read.
        if row_max is None:
            raise Skip(f"{name} could not be read")
        dtype = ckpt.tensors[name].dtype
        maxima.append(decode(dtype, np.frombuffer(row_max, FORMATS[dtype].unsigned)))
    magnitudes = np.concatenate(maxima)
    finite = magnitudes[np.isfinite(magnitudes)]
    if not finite.size:
        raise Skip(f"every row of {name} holds NaN or Inf")
    middle = finite.size // 2
    # np.median takes ten times as long.
    median = float(np.partition(finite, middle)[middle])
    threshold = max(near_zero, far_below * median)
    return bool(((magnitudes < threshold) | (magnitudes == 0)).any())


def compute_row_stats(ckpt: Checkpoint, *parts: str, jobs: int = 1) -> RowStats:
    """Read a matrix and compute the statistics of its rows. parts: the tensors that hold the rows, in order.

    Raises Skip for packed dtypes, OSError if reading fails.
    """
    import numpy as np

    return RowStats(*np.concatenate([_tensor_row_stats(ckpt, name, jobs) for name in parts], axis=1))


def compute_mean_row(ckpt: Checkpoint, name: str, *, jobs: int = 1) -> NDArray[np.float64]:
    """Read a matrix and compute the mean of its rows, without rows that hold NaN or Inf. Raises as `compute_row_stats`."""
    import numpy as np

    sums: list[NDArray[np.float64]] = []
    counts: list[int] = []

    def process(first: int, patterns: NDArray[Any]) -> None:
        values = decode(ckpt.tensors[name].dtype, patterns)
        total = values.sum(axis=0, dtype=np.float64)
        if not np.isfinite(total).all():
            values = values[np.isfinite(values).all(axis=1)]
            total = values.sum(axis=0, dtype=np.float64)
        sums.append(total)
        counts.append(len(values))

    _for_each_rows(ckpt, name, process, jobs)
    mean: NDArray[np.float64] = np.sum(sums, axis=0) / max(sum(counts), 1)
    return mean


def read_row_starts(ckpt: Checkpoint, name: str, columns: int, *, jobs: int = 1) -> NDArray[np.float32]:
    """Read a matrix and return the first elements of each row, [rows, at most `columns`]. Raises as `compute_row_stats`."""
    import numpy as np

    tensor = ckpt.tensors[name]
    starts = np.empty((tensor.shape[0], min(columns, tensor.shape[1])), np.float32)

    def process(first: int, patterns: NDArray[Any]) -> None:
        starts[first : first + len(patterns)] = decode(tensor.dtype, patterns[:, :columns])

    _for_each_rows(ckpt, name, process, jobs)
    return starts


def _tensor_row_stats(ckpt: Checkpoint, name: str, jobs: int) -> NDArray[np.float32]:
    import numpy as np

    tensor = ckpt.tensors[name]
    stats = np.empty((3, tensor.shape[0]), np.float32)

    def process(first: int, patterns: NDArray[Any]) -> None:
        stats[:, first : first + len(patterns)] = _block_row_stats(decode(tensor.dtype, patterns), tensor.shape[1])

    _for_each_rows(ckpt, name, process, jobs)
    return stats


def _for_each_rows(ckpt: Checkpoint, name: str, process: Callable[[int, NDArray[Any]], None], jobs: int) -> None:
    """Call `process` with the number of a first row and the patterns of a few rows, until it has received all rows."""
    import numpy as np

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
    if not tensor.has_rows:
        raise Skip(f"the rows of {name} are packed")
    number, width = tensor.shape
    nbytes = width * (FORMATS[tensor.dtype].bits // 8)
    together, step = max(1, READ_BYTES // nbytes), max(1, STEP_BYTES // nbytes)

    def read(first: int) -> None:
        last = min(first + together, number)
        raw = ckpt.source.read(shard.name, shard.locate(name) + first * nbytes, (last - first) * nbytes)
        if len(raw) < (last - first) * nbytes:
            raise Skip(f"{shard.name} shrank while it was being read")
        patterns = np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(-1, width)
        for begin in range(0, len(patterns), step):
            process(first + begin, patterns[begin : begin + step])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(read, range(0, number, together)))


def _block_row_stats(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Return the mean magnitude, largest magnitude and standard deviation of each row, [3, rows].

    A product with ones is numpy's fastest sum. The squared deviations are the difference of two sums; where that difference
    is small, it is rounding noise, and the deviations of these rows are computed from the elements.
    """
    import numpy as np

    ones = np.ones(width, values.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = values @ ones
        squares = np.einsum("ij,ij->i", values, values)
        deviations = squares - sums * sums / width
        again = ~(deviations > CANCELLATION_LIMIT * squares)
        if again.any():
            deviations[again] = _squared_deviations(values[again])
        magnitude = np.abs(values, out=values) if values.flags.writeable else np.abs(values)
        return np.stack([magnitude @ ones / width, magnitude.max(axis=1), np.sqrt(deviations / max(width - 1, 1))])


def _squared_deviations(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squared deviations of each row; exactly 0 for a row of one number."""
    import numpy as np

    shifted = values.astype(np.float64) - values[:, :1]
    shifted -= shifted.mean(axis=1, keepdims=True)
    squares: NDArray[Any] = np.einsum("ij,ij->i", shifted, shifted)
    return squares
