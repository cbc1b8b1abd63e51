"""Reads some rows and columns of a matrix that the value pass does not sample."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes of the matrices that can be compared without their scales."""
MAX_SLICES = 32
"""Up to this many runs of columns, cutting out run by run is faster than picking single columns."""


def read_rows(
    ckpt: Checkpoint, stats: TensorStats, rows: NDArray[np.intp], columns: NDArray[np.intp] | None = None
) -> NDArray[Any]:
    """Read some rows and columns (None: all) of a matrix as float32 or float64; neighbouring rows are read together."""
    import numpy as np

    form = FORMATS[stats.dtype]
    width = prod(stats.shape[1:]) * (form.bits // 8)
    slices = None if columns is None else _find_runs(columns)
    parts = []
    for begin, end in _find_runs(rows):
        raw = read_tensor_bytes(ckpt, stats.name, begin * width, (end - begin) * width)
        if len(raw) < (end - begin) * width:
            raise Skip(f"{stats.shard} shrank while it was being read")
        whole = np.frombuffer(raw, form.unsigned).reshape(end - begin, -1)
        if slices is None:
            parts.append(whole)
        elif len(slices) <= MAX_SLICES:
            parts.append(np.concatenate([whole[:, first:last] for first, last in slices], axis=1))
        else:
            parts.append(whole[:, columns])
        # Freed before the next run is read, which then gets the same memory: fresh pages cost five times as much as the reading.
        del raw, whole
    return decode(stats.dtype, np.concatenate(parts) if len(parts) > 1 else parts[0])


def _find_runs(channels: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return the begin and the end of each run of neighbouring channels, in the order given."""
    import numpy as np

    breaks = np.flatnonzero(np.diff(channels) != 1) + 1
    begins = channels[np.concatenate(([0], breaks))]
    ends = channels[np.concatenate((breaks - 1, [len(channels) - 1]))] + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def compute_mean_squares(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Return the mean of the squares of a matrix along an axis."""
    import numpy as np

    # einsum multiplies and adds in one pass: a third of the time of square and mean.
    sums: NDArray[np.float64] = np.einsum("ij,ij->" + "ji"[axis], values, values).astype(np.float64)
    means: NDArray[np.float64] = sums / values.shape[axis]
    return means
