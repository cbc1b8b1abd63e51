"""Reads some rows and columns of a matrix that the value pass does not sample."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptcheck.values.detectors.byte_compare import map_pieces, read_patterns
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.kept_places import Cut
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes of the matrices that can be compared without their scales."""
MAX_SLICES = 32
"""Up to this many runs of columns, cutting out run by run is faster than picking single columns."""


class MatrixPart(NamedTuple):
    """Some rows and columns of a matrix: what `read_rows` reads."""

    stats: TensorStats
    rows: NDArray[np.intp]
    columns: NDArray[np.intp] | None


def read_rows(
    ckpt: Checkpoint, stats: TensorStats, rows: NDArray[np.intp], columns: NDArray[np.intp] | None = None
) -> NDArray[Any]:
    """Read some rows and columns (None: all) of a matrix as float32 or float64; neighbouring rows are read together.

    What the value pass kept is not read again.
    """
    import numpy as np

    if (kept := _find_kept(ckpt, stats, rows, columns)) is not None:
        return decode(stats.dtype, kept)
    width = prod(stats.shape[1:]) * (FORMATS[stats.dtype].bits // 8)
    slices = None if columns is None else _find_runs(columns)

    def read_run(run: tuple[int, int]) -> NDArray[Any]:
        begin, end = run
        whole = read_patterns(ckpt, stats.name, begin * width, (end - begin) * width).reshape(end - begin, -1)
        if slices is None:
            return whole
        if len(slices) <= MAX_SLICES:
            return np.concatenate([whole[:, first:last] for first, last in slices], axis=1)
        return whole[:, columns]

    # A run is freed before the next is read, which then gets the same memory: fresh pages cost five times the reading.
    parts = list(map_pieces(ckpt, read_run, _find_runs(rows)))
    return decode(stats.dtype, np.concatenate(parts) if len(parts) > 1 else parts[0])


def make_cut(part: MatrixPart) -> Cut:
    """Return the cut that holds these rows and columns (None: all), each once and in order."""
    import numpy as np

    stats, rows, columns = part
    width = FORMATS[stats.dtype].bits // 8
    runs = [(0, prod(stats.shape[1:]))] if columns is None else _find_runs(np.unique(columns))
    return Cut(tuple(_find_runs(np.unique(rows))), tuple((begin * width, end * width) for begin, end in runs))


def _find_kept(
    ckpt: Checkpoint, stats: TensorStats, rows: NDArray[np.intp], columns: NDArray[np.intp] | None
) -> NDArray[Any] | None:
    """Return the patterns of these rows and columns if the value pass kept them."""
    import numpy as np

    if (kept := ckpt.values.kept.get(stats.name)) is None or not kept.places.cuts:
        return None
    cut = make_cut(MatrixPart(stats, rows, columns))
    if (raw := kept.find_cut(cut.rows, cut.columns)) is None:
        return None
    patterns = (
        np.frombuffer(raw, FORMATS[stats.dtype].unsigned)
        .reshape(sum(end - begin for begin, end in cut.rows), -1)
        .copy()
    )
    for axis, channels in ((0, rows), (1, columns)):
        if channels is not None and (np.diff(channels) <= 0).any():
            patterns = patterns.take(np.unique(channels, return_inverse=True)[1], axis=axis)
    return patterns


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
