"""Samples the norms of some rows and columns of a matrix while its bytes are scanned.

It takes 256 rows and 256 columns of a matrix, in runs of neighbours: enough to see how the channels differ, at a
hundredth of the cost of reading those rows again. Each run has its own sum, since each lies in the part of one of eight
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.tensor import Tensor

SAMPLED_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "I8")
"""dtypes whose matrices are sampled, the last two without their scales."""
MAX_CHANNELS, RUNS = 256, 8
"""Channels that are sampled, and the evenly spread runs of neighbours that they form. If all channels of an axis are
sampled, the runs are its eighths."""
MIN_CHANNELS = 32
"""Rows and columns below which a matrix is not sampled."""
MAX_ROW_BYTES = 1 << 20
"""Bytes of a row above which a matrix is not sampled: pieces of it are whole rows, and a reader holds a piece in memory."""


@dataclass(frozen=True)
class ChannelSample:
    """The mean squares of the sampled rows and columns of a matrix, each over the sampled part of the other axis."""

    row_sums: NDArray[np.float32]
    """[rows, runs]: the sums of squares of the sampled rows over each run of columns."""
    column_sums: NDArray[np.float32]
    """[runs, columns]: the same for the sampled columns over each run of rows."""

    @cached_property
    def rows(self) -> NDArray[np.float64]:
        """The mean squares of the sampled rows."""
        import numpy as np

        means: NDArray[np.float64] = self.row_sums.sum(1, np.float64) / self.column_sums.shape[1]
        return means

    @cached_property
    def columns(self) -> NDArray[np.float64]:
        """The mean squares of the sampled columns."""
        import numpy as np

        means: NDArray[np.float64] = self.column_sums.sum(0, np.float64) / self.row_sums.shape[0]
        return means


def choose_channels(channels: int, most: int = MAX_CHANNELS) -> NDArray[np.intp]:
    """Return the channels that are sampled, in runs of neighbours."""
    import numpy as np

    return np.concatenate([np.arange(begin, end) for begin, end in choose_runs(channels, most)])


def choose_runs(channels: int, most: int = MAX_CHANNELS) -> list[tuple[int, int]]:
    """Return [begin, end) of each run of sampled channels.

    >>> choose_runs(100)
    [(0, 100)]
    >>> choose_runs(1000, 16)
    [(0, 2), (142, 144), (285, 287), (427, 429), (570, 572), (712, 714), (855, 857), (998, 1000)]
    """
    if channels <= most:
        return [(0, channels)]
    together = most // RUNS
    starts = [run * (channels - together) // (RUNS - 1) for run in range(RUNS)]
    return [(start, start + together) for start in starts]


def is_sampled(name: str, tensor: Tensor) -> bool:
    """Whether the channels of a tensor are sampled: it is a matrix, and not one of the many of single experts."""
    if len(tensor.shape) != 2 or min(tensor.shape) < MIN_CHANNELS or tensor.dtype not in SAMPLED_DTYPES:
        return False
    rows, columns = tensor.shape
    row = columns * FORMATS[tensor.dtype].bits // 8
    return tensor.nbytes == rows * row and row <= MAX_ROW_BYTES and ".experts." not in name


def find_run_starts(number: int) -> list[int]:
    """Return where each run begins among the sampled channels of an axis.

    >>> find_run_starts(256), find_run_starts(40)
    ([0, 32, 64, 96, 128, 160, 192, 224], [0, 5, 10, 15, 20, 25, 30, 35])
    """
    return [run * number // RUNS for run in range(RUNS)]


def sum_squares(
    raw: NDArray[np.uint8], dtype: str, first_row: int, shape: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the addition of a piece of a matrix to the sums of squares: [rows, runs] and [runs, columns].

    raw: the bytes of a whole number of rows.
    first_row: the row with which the piece begins.
    shape: rows and columns of the matrix.
    """
    import numpy as np

    rows, columns = shape
    patterns = raw.view(FORMATS[dtype].unsigned).reshape(-1, columns)
    column_runs = choose_runs(columns)
    parts = []
    before = 0  # sampled rows in front of the piece
    for begin, end in choose_runs(rows):
        if len(run := patterns[max(begin - first_row, 0) : max(end - first_row, 0)]):
            parts.append(np.concatenate([run[:, first:last] for first, last in column_runs], axis=1))
        before += min(max(first_row - begin, 0), end - begin)
    if not parts:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    with np.errstate(all="ignore"):
        values = decode(dtype, np.concatenate(parts))
        # einsum multiplies and adds in one go: a third of the time of square and sum.
        if values.shape[1] % RUNS == 0:
            cells = values.reshape(len(values), RUNS, -1)
            by_row = np.einsum("rkc,rkc->rk", cells, cells)
        else:
            by_row = np.add.reduceat(values * values, find_run_starts(values.shape[1]), axis=1)
        sampled = min(rows, MAX_CHANNELS)
        if len(values) == sampled and sampled % RUNS == 0:
            cells = values.reshape(RUNS, -1, values.shape[1])
            by_column = np.einsum("krc,krc->kc", cells, cells)
        else:
            inside = [max(start - before, 0) for start in find_run_starts(sampled)[1:]]
            by_column = np.stack([np.einsum("rc,rc->c", part, part) for part in np.split(values, inside)])
        return by_row.astype(np.float32), by_column.astype(np.float32)


def join_sums(pieces: list[tuple[bytes, bytes]], shape: tuple[int, ...]) -> ChannelSample | None:
    """Join the sums of the pieces of a matrix, in order; None if a piece is missing.

    pieces: results of `sum_squares`, as bytes.
    """
    import numpy as np

    parts = [
        (np.frombuffer(rows, np.float32).reshape(-1, RUNS), np.frombuffer(columns, np.float32).reshape(RUNS, -1))
        for rows, columns in pieces
        if rows
    ]
    rows = sum(end - begin for begin, end in choose_runs(shape[0]))
    if sum(len(by_row) for by_row, _ in parts) != rows:
        return None
    if len(parts) == 1:
        return ChannelSample(*parts[0])
    with np.errstate(all="ignore"):
        return ChannelSample(
            np.concatenate([by_row for by_row, _ in parts]), np.sum([by_column for _, by_column in parts], axis=0)
        )
