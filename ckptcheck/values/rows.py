"""Statistics of each row of an embedding or a head: a row is a token."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Rows:
    """One entry per row, float32. mean_abs, max_abs, and std (unbiased, as torch has it)."""

    mean_abs: NDArray[np.float32]
    max_abs: NDArray[np.float32]
    std: NDArray[np.float32]

    def near_zero(self, threshold: float) -> NDArray[np.bool_]:
        """Rows whose every element is below the threshold in magnitude; NeMo-RL's default is 1e-10."""
        return self.max_abs < threshold

    def identical(self, threshold: float) -> NDArray[np.bool_]:
        """Rows whose elements are all the same: their standard deviation is below the threshold; NeMo-RL's is 1e-8."""
        return self.std < threshold

    def far_below(self, share: float) -> NDArray[np.bool_]:
        """Rows whose mean magnitude is below this share of the median row's."""
        import numpy as np

        return self.mean_abs < share * float(np.median(self.mean_abs))


def suspects(ckpt: Checkpoint, name: str, near_zero: float, far_below: float, *, jobs: int = 1) -> bool:
    """Whether any row may be untrained, by its patterns alone: no conversion to float, ten times as fast as `row_stats`.

    A row is suspect when its largest magnitude is below `near_zero` or below a share of the median row's, or when all its
    elements are the same. Errors as `row_stats`.
    """
    import numpy as np

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    top, same = np.zeros(tensor.shape[0], form.unsigned), np.zeros(tensor.shape[0], np.bool_)
    bare = np.dtype(form.unsigned).type(form.sign - 1)

    def look_at(first: int, patterns: NDArray[Any]) -> None:
        last = first + len(patterns)
        highest, lowest = patterns.max(axis=1), patterns.min(axis=1)
        same[first:last] = highest == lowest
        signed = patterns.view(form.unsigned.replace("u", "i")).max(axis=1)
        top[first:last] = np.maximum(
            np.where(highest > bare, highest & bare, 0), np.maximum(signed, 0).astype(form.unsigned)
        )

    _rows(ckpt, name, look_at, jobs)
    magnitudes = decode(tensor.dtype, top)
    return bool(same.any() or (magnitudes < max(near_zero, far_below * float(np.median(magnitudes)))).any())


def row_stats(ckpt: Checkpoint, name: str, *, jobs: int = 1) -> Rows:
    """Read a matrix and return the statistics of its rows. Raises Skip for packed dtypes, OSError where reading fails."""
    import numpy as np

    tensor = ckpt.tensors[name]
    found = np.empty((3, tensor.shape[0]), np.float32)

    def look_at(first: int, patterns: NDArray[Any]) -> None:
        found[:, first : first + len(patterns)] = _stats(decode(tensor.dtype, patterns), tensor.shape[1])

    _rows(ckpt, name, look_at, jobs)
    return Rows(*found)


def _rows(ckpt: Checkpoint, name: str, look_at: Callable[[int, NDArray[Any]], None], jobs: int) -> None:
    """Hand the rows of a matrix over as patterns, a few at a time, with the number of the first."""
    import numpy as np

    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]
    if not tensor.is_plain or len(tensor.shape) != 2 or 0 in tensor.shape:
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
    """Mean and largest magnitude and standard deviation of each row. Products with ones are the fastest sums there are."""
    import numpy as np

    ones = np.ones(width, values.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = values @ ones
        squares = np.einsum("ij,ij->i", values, values)
        magnitude = np.abs(values, out=values) if values.flags.writeable else np.abs(values)
        variance = np.maximum(squares - sums * sums / width, 0) / max(width - 1, 1)
        return np.stack([magnitude @ ones / width, magnitude.max(axis=1), np.sqrt(variance)])
