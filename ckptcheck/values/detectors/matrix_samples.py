"""Reads some rows and columns of a matrix: enough to estimate the norms of its channels."""

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
MAX_CHANNELS, RUNS = 256, 8
"""Channels that are sampled, and the runs of neighbouring channels in which they are read, spread evenly."""


def choose_channels(channels: int, most: int = MAX_CHANNELS) -> NDArray[np.intp]:
    """Return the channels that are sampled, in runs of neighbours."""
    import numpy as np

    if channels <= most:
        return np.arange(channels)
    together = most // RUNS
    starts = [run * (channels - together) // (RUNS - 1) for run in range(RUNS)]
    return np.concatenate([np.arange(start, start + together) for start in starts])


def read_rows(
    ckpt: Checkpoint, stats: TensorStats, rows: NDArray[np.intp], columns: NDArray[np.intp] | None = None
) -> NDArray[Any]:
    """Read some rows and columns (None: all) of a matrix as float32 or float64; neighbouring rows are read together."""
    import numpy as np

    form = FORMATS[stats.dtype]
    width = prod(stats.shape[1:]) * (form.bits // 8)
    parts = []
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        raw = read_tensor_bytes(ckpt, stats.name, int(run[0]) * width, len(run) * width)
        if len(raw) < len(run) * width:
            raise Skip(f"{stats.shard} shrank while it was being read")
        whole = np.frombuffer(raw, form.unsigned).reshape(len(run), -1)
        parts.append(whole if columns is None else whole[:, columns])
    return decode(stats.dtype, np.concatenate(parts) if len(parts) > 1 else parts[0])
