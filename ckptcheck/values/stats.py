"""The result of the value pass: a few numbers per tensor, which all value rules share."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.dtypes import decode_magnitude
from ckptcheck.values.sketch import Sketch, sketch_samples

if TYPE_CHECKING:
    from ckptcheck.values.channel_sample import ChannelSample
    from ckptcheck.values.kept_places import Kept

MIN_ZERO_RUN = 1024
"""Shorter runs of zero bytes do not count."""


class ChunkStats(msgspec.Struct, array_like=True):
    """Statistics of a run of bytes of one tensor. Positions count elements from the start of the run."""

    max_pattern: int = 0
    """The largest bit pattern without its sign among the finite elements."""
    nan: int = 0
    """How many elements are NaN."""
    inf: int = 0
    """How many elements are infinite."""
    first_nan: int = -1
    """Position of the first NaN; -1 without one."""
    first_inf: int = -1
    """Position of the first Inf; -1 without one."""
    constant: int | None = None
    """The pattern of all elements if they are equal; otherwise None."""
    zero_runs: list[tuple[int, int]] = []
    """[begin, end) in bytes of the runs of at least MIN_ZERO_RUN zero bytes, and of shorter ones at either end."""
    row_max: bytes = b""
    """The result of `row_scan.max_row_patterns`, if the piece asks for rows."""
    row_fingerprints: bytes = b""
    """The result of `row_scan.row_fingerprints`, if the piece asks for rows."""
    row_squares: bytes = b""
    """float32: the sums of squares of the sampled rows of the piece (`channel_sample.sum_squares`)."""
    column_squares: bytes = b""
    """float32: the addition of the piece to those of the sampled columns."""
    elements: bytes = b""
    """The result of `sketch.take_sample`, if the piece asks for a sample."""
    looks: bytes = b""
    """If the piece is looked at: the flags of the matrix (see `first_looks`) if it is whole, else the bytes of its places."""
    kept: list[bytes] = []
    """The result of `kept_places.take_places`, if the piece asks for places to keep."""


class TensorStats(msgspec.Struct):
    """Statistics of all elements of one tensor."""

    name: str
    shard: str
    dtype: str
    shape: tuple[int, ...]
    absmax: float = 0.0
    """The largest magnitude among the finite elements; for packed and integer dtypes the largest pattern."""
    nan: int = 0
    """How many elements are NaN."""
    inf: int = 0
    """How many elements are infinite."""
    first_nan: int = -1
    """Flat index of the first NaN; -1 without one."""
    first_inf: int = -1
    """Flat index of the first Inf; -1 without one."""
    zero: bool = False
    """Whether every element is zero, of either sign."""
    constant: bool = False
    """Whether every element has the same pattern (zero included)."""


class ValueStats(msgspec.Struct, frozen=True, dict=True):
    """Statistics of all tensors of a checkpoint."""

    tensors: dict[str, TensorStats] = msgspec.field(default_factory=dict)
    """By name: those of `ScanPlan.tensors`, without tensors of shards that could not be read to the end."""
    zero_runs: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    """Shard → [begin, end) of its runs of at least MIN_ZERO_RUN zero bytes from the start of the data, across tensors."""
    complete_shards: set[str] = msgspec.field(default_factory=set)
    """The shards whose every value was scanned."""
    row_max: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Embedding or head → for each row the largest magnitude among its first elements; 0 if these are all the same.
    Unsigned patterns of the dtype, as `row_scan.max_row_patterns` returns them."""
    row_fingerprints: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Embedding or head → the first FINGERPRINT_BYTES bytes of each row."""
    samples: dict[str, ChannelSample] = msgspec.field(default_factory=dict)
    """Matrix → the mean squares of some of its rows and columns (`channel_sample.is_sampled` says which matrices)."""
    looks: dict[str, int] = msgspec.field(default_factory=dict)
    """Matrix → what a look at a few of its places rules out (flags of `first_looks`)."""
    kept: dict[str, Kept] = msgspec.field(default_factory=dict)
    """Tensor → the bytes of some of its places, which are not read again."""
    element_samples: dict[str, tuple[str, bytes]] = msgspec.field(default_factory=dict)
    """Tensor of numbers → dtype and patterns of a sample of its elements; {} if the pass takes none."""
    shrunk: dict[str, str] = msgspec.field(default_factory=dict)
    """Shard → what happened to it while it was being read."""
    unread: dict[str, str] = msgspec.field(default_factory=dict)
    """Shard → why it could not be read to the end."""

    @cached_property
    def sketches(self) -> dict[str, Sketch]:
        """Tensor → the sketch of its sample."""
        return sketch_samples(self.element_samples)


Chunks = list[tuple[int, ChunkStats]]
"""The pieces of a tensor: the first element of each, and its statistics, in order."""


def join_chunks(name: str, shard: str, dtype: str, shape: tuple[int, ...], chunks: Chunks) -> TensorStats:
    """Return the statistics of the whole tensor."""
    max_pattern, nan, inf, first_nan, first_inf = 0, 0, 0, -1, -1
    for offset, chunk in chunks:
        max_pattern = max(max_pattern, chunk.max_pattern)
        if chunk.nan or chunk.inf:
            nan, inf = nan + chunk.nan, inf + chunk.inf
            if first_nan < 0 <= chunk.first_nan:
                first_nan = offset + chunk.first_nan
            if first_inf < 0 <= chunk.first_inf:
                first_inf = offset + chunk.first_inf
    # In E8M0 the pattern 0 is a power of two, not zero.
    is_zero = not (max_pattern or nan or inf) and dtype != "F8_E8M0"
    constant = chunks[0][1].constant if chunks else None
    is_constant = constant is not None and all(chunk.constant == constant for _, chunk in chunks)
    absmax = decode_magnitude(dtype, max_pattern)
    return TensorStats(name, shard, dtype, shape, absmax, nan, inf, first_nan, first_inf, is_zero, is_constant)


def merge_runs(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge runs that touch, because a run may cross from one piece to the next; keep runs of MIN_ZERO_RUN or more."""
    merged: list[list[int]] = []
    for begin, end in sorted(runs):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return [(begin, end) for begin, end in merged if end - begin >= MIN_ZERO_RUN]


def clip_runs(runs: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of sorted runs that lie in [low, high).

    >>> clip_runs([(0, 2), (4, 6), (8, 12)], 5, 10)
    [(5, 6), (8, 10)]
    """
    first = max(bisect_right(runs, (low, low)) - 1, 0)
    clipped = []
    for begin, end in runs[first:]:
        if begin >= high:
            break
        if end > low:
            clipped.append((max(begin, low), min(end, high)))
    return clipped
