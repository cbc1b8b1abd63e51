"""Statistics of each row of an embedding or a head: a row is a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

from ckptcheck.rule import Skip
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

STEP = 1 << 19
"""Bytes of rows that are looked at together, so that their float32 form stays in the cache."""
READ = 1 << 23
FEW = 4
"""Rows that make a cluster."""
SPREAD = 2
"""A cluster's sizes may vary so many times as much as those of rows drawn from one distribution."""
GAP = 1.5
"""How much larger the smallest row above a cluster is than the largest in it."""
CANCELLED = 1e-3
"""Share of a row's sum of squares from which its deviations can be had as a difference in float32."""


@dataclass(frozen=True)
class Rows:
    """One entry per row, float32. mean_abs, max_abs, and std (unbiased, as torch has it); NaN and Inf where the row has any."""

    mean_abs: NDArray[np.float32]
    max_abs: NDArray[np.float32]
    std: NDArray[np.float32]

    @property
    def finite(self) -> Rows:
        """Only the rows without NaN and Inf; other rules name those."""
        import numpy as np

        fine = np.isfinite(self.mean_abs)
        return self if fine.all() else Rows(self.mean_abs[fine], self.max_abs[fine], self.std[fine])

    @cached_property
    def median(self) -> float:
        """The median mean magnitude of the finite rows. Raises Skip where there is none."""
        import numpy as np

        sizes = self.finite.mean_abs
        if not sizes.size:
            raise Skip("every row holds NaN or Inf")
        return float(np.median(sizes))

    def near_zero(self, threshold: float) -> NDArray[np.bool_]:
        """Rows whose every element is below the threshold in magnitude; NeMo-RL's default is 1e-10."""
        return self.max_abs < threshold

    def identical(self, threshold: float) -> NDArray[np.bool_]:
        """Rows whose elements are all the same: their standard deviation is below the threshold; NeMo-RL's is 1e-8."""
        return self.std < threshold

    def cluster(self, share: float, known: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
        """Rows below this share of the median's mean magnitude that are alike in it and apart from all above; none if unsure.

        Rows that were drawn and never trained are alike: in n elements of one normal distribution the mean magnitude
        varies by sqrt(pi / 2 - 1) / sqrt(n). Decay shrinks them all by one factor. known: rows left out. width: n.
        """
        import numpy as np

        low = self.far_below(share) & ~known
        sizes = self.mean_abs[low]
        if len(sizes) < FEW:
            return np.zeros_like(low)
        above = np.fmin.reduce(self.mean_abs[~low & ~known], initial=np.inf)
        spread = float(sizes.std() / sizes.mean())
        if spread > SPREAD * sqrt(pi / 2 - 1) / sqrt(width) or above < GAP * sizes.max():
            return np.zeros_like(low)
        return low

    def far_below(self, share: float) -> NDArray[np.bool_]:
        """Rows whose mean magnitude is below this share of the median row's."""
        return self.mean_abs < share * self.median


def suspects(ckpt: Checkpoint, parts: Iterable[str], near_zero: float, far_below: float) -> bool:
    """Whether any row may be untrained, by the glance that the value pass took at each: nothing is read again.

    A row is suspect when the largest magnitude of its first elements is below `near_zero` or below a share of the median
    row's, or when they are all the same. parts: the tensors that hold the rows of one matrix. Raises Skip for packed dtypes,
    where values are not read and where no row is finite.
    """
    import numpy as np

    found = []
    for name in parts:
        if not ckpt.tensors[name].has_rows:
            raise Skip(f"the rows of {name} are packed")
        peaks = ckpt.values.row_peaks.get(name)
        if peaks is None:  # its shard could not be read: other rules say so
            raise Skip(f"{name} could not be read")
        dtype = ckpt.tensors[name].dtype
        found.append(decode(dtype, np.frombuffer(peaks, FORMATS[dtype].unsigned)))
    magnitudes = np.concatenate(found)
    finite = magnitudes[np.isfinite(magnitudes)]
    if not finite.size:
        raise Skip(f"every row of {name} holds NaN or Inf")
    middle = finite.size // 2
    threshold = max(
        near_zero, far_below * float(np.partition(finite, middle)[middle])
    )  # np.median takes ten times as long
    return bool(((magnitudes < threshold) | (magnitudes == 0)).any())


def row_stats(ckpt: Checkpoint, *parts: str, jobs: int = 1) -> Rows:
    """Read a matrix and return the statistics of its rows. parts: the tensors that hold them, in order.

    Raises Skip for packed dtypes, OSError where reading fails.
    """
    import numpy as np

    return Rows(*np.concatenate([_stats_of(ckpt, name, jobs) for name in parts], axis=1))


def row_mean(ckpt: Checkpoint, name: str, *, jobs: int = 1) -> NDArray[np.float64]:
    """Read a matrix and return the mean of its rows without NaN and Inf. Errors as `row_stats`."""
    import numpy as np

    sums: list[NDArray[np.float64]] = []
    counts: list[int] = []

    def look_at(first: int, patterns: NDArray[Any]) -> None:
        values = decode(ckpt.tensors[name].dtype, patterns)
        total = values.sum(axis=0, dtype=np.float64)
        if not np.isfinite(total).all():
            values = values[np.isfinite(values).all(axis=1)]
            total = values.sum(axis=0, dtype=np.float64)
        sums.append(total)
        counts.append(len(values))

    _rows(ckpt, name, look_at, jobs)
    mean: NDArray[np.float64] = np.sum(sums, axis=0) / max(sum(counts), 1)
    return mean


def _stats_of(ckpt: Checkpoint, name: str, jobs: int) -> NDArray[np.float32]:
    import numpy as np

    tensor = ckpt.tensors[name]
    found = np.empty((3, tensor.shape[0]), np.float32)

    def look_at(first: int, patterns: NDArray[Any]) -> None:
        found[:, first : first + len(patterns)] = _stats(decode(tensor.dtype, patterns), tensor.shape[1])

    _rows(ckpt, name, look_at, jobs)
    return found


def _rows(ckpt: Checkpoint, name: str, look_at: Callable[[int, NDArray[Any]], None], jobs: int) -> None:
    """Hand the rows of a matrix over as patterns, a few at a time, with the number of the first."""
    import numpy as np

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]
    if not tensor.has_rows:
        raise Skip(f"the rows of {name} are packed")
    number, width = tensor.shape
    nbytes = width * (FORMATS[tensor.dtype].bits // 8)
    together, step = max(1, READ // nbytes), max(1, STEP // nbytes)

    def read(first: int) -> None:
        last = min(first + together, number)
        raw = ckpt.source.read(
            shard.name, shard.data_start + tensor.data_offsets[0] + first * nbytes, (last - first) * nbytes
        )
        if len(raw) < (last - first) * nbytes:
            raise Skip(f"{shard.name} shrank while it was being read")
        patterns = np.frombuffer(raw, FORMATS[tensor.dtype].unsigned).reshape(-1, width)
        for begin in range(0, len(patterns), step):
            look_at(first + begin, patterns[begin : begin + step])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(read, range(0, number, together)))


def _stats(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Mean and largest magnitude and standard deviation of each row. Products with ones are the fastest sums there are.

    The deviations are had as a difference of sums; of rows where little is left of it, which is noise, they are taken again.
    """
    import numpy as np

    ones = np.ones(width, values.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = values @ ones
        squares = np.einsum("ij,ij->i", values, values)
        deviations = squares - sums * sums / width
        again = ~(deviations > CANCELLED * squares)
        if again.any():
            deviations[again] = _deviations(values[again])
        magnitude = np.abs(values, out=values) if values.flags.writeable else np.abs(values)
        return np.stack([magnitude @ ones / width, magnitude.max(axis=1), np.sqrt(deviations / max(width - 1, 1))])


def _deviations(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of squared deviations of each row; exactly 0 for one number throughout."""
    import numpy as np

    moved = values.astype(np.float64) - values[:, :1]
    moved -= moved.mean(axis=1, keepdims=True)
    squares: NDArray[Any] = np.einsum("ij,ij->i", moved, moved)
    return squares
