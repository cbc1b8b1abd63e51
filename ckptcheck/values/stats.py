"""What the value pass leaves behind: a few numbers per tensor, shared by all value rules."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.dtypes import magnitude

if TYPE_CHECKING:
    from ckptcheck.values.look import Seen

RUN = 1024
"""Bytes of zeros from which a run of them counts."""


class TensorStats(msgspec.Struct):
    """One tensor. absmax: the largest magnitude among finite elements (the pattern itself for packed and integer dtypes).

    nan, inf: how many; first_nan, first_inf: the flat index of the first, -1 if there is none. zero: every element is
    zero, of either sign. constant: every element has the same pattern (zero included).
    """

    name: str
    shard: str
    dtype: str
    shape: tuple[int, ...]
    absmax: float = 0.0
    nan: int = 0
    inf: int = 0
    first_nan: int = -1
    first_inf: int = -1
    zero: bool = False
    constant: bool = False


@dataclass(frozen=True)
class Values:
    """What every tensor of a checkpoint showed.

    zero_runs: shard → runs of at least RUN zero bytes, [begin, end) from the start of the data, across tensors.
    looked_at: the shards whose every value was seen.
    row_peaks: embedding and head → for each row the largest magnitude among its first elements, 0 where they are all the same
    (see `peaks`); unsigned patterns of the dtype. row_marks: the first MARK bytes of each row.
    shrunk: shard → what happened to it while it was being read. unread: shard → why it could not be read to the end.
    """

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    zero_runs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)
    row_peaks: dict[str, bytes] = field(default_factory=dict)
    row_marks: dict[str, bytes] = field(default_factory=dict)
    shrunk: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


@dataclass
class Gathering:
    """The pieces of one tensor, joined as they come in any order. patterns: the constants of the pieces."""

    top: int = 0
    nan: int = 0
    inf: int = 0
    first_nan: int = -1
    first_inf: int = -1
    patterns: set[int | None] = field(default_factory=set)
    row_peaks: dict[int, bytes] = field(default_factory=dict)
    row_marks: dict[int, bytes] = field(default_factory=dict)

    def add(self, seen: Seen, offset: int) -> None:
        """Add what a piece showed that begins `offset` elements into the tensor."""
        self.top = max(self.top, seen.top)
        self.nan += seen.nan
        self.inf += seen.inf
        self.patterns.add(seen.constant)
        if seen.row_peaks:
            self.row_peaks[offset] = seen.row_peaks
            self.row_marks[offset] = seen.row_marks
        for name in ("first_nan", "first_inf"):
            found, known = getattr(seen, name), getattr(self, name)
            if found >= 0 and (known < 0 or found + offset < known):
                setattr(self, name, found + offset)

    def stats(self, name: str, shard: str, dtype: str, shape: tuple[int, ...]) -> TensorStats:
        """Return the joined statistics."""
        nothing = not (self.top or self.nan or self.inf) and dtype != "F8_E8M0"  # there, 0 is a power of two
        constant = len(self.patterns) == 1 and None not in self.patterns
        return TensorStats(
            name,
            shard,
            dtype,
            shape,
            magnitude(dtype, self.top),
            self.nan,
            self.inf,
            self.first_nan,
            self.first_inf,
            nothing,
            constant,
        )

    def peaks(self) -> bytes:
        """Return the peaks of all rows, in order."""
        return b"".join(self.row_peaks[at] for at in sorted(self.row_peaks))

    def marks(self) -> bytes:
        """Return the marks of all rows, in order."""
        return b"".join(self.row_marks[at] for at in sorted(self.row_marks))


def joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join runs that touch, as those do that cross from one piece to the next; keep those of at least RUN."""
    found: list[list[int]] = []
    for begin, end in sorted(runs):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return [(begin, end) for begin, end in found if end - begin >= RUN]


def within(runs: list[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """Return the parts of sorted runs that lie in [low, high).

    >>> within([(0, 2), (4, 6), (8, 12)], 5, 10)
    [(5, 6), (8, 10)]
    """
    first = max(bisect_right(runs, (low, low)) - 1, 0)
    found = []
    for begin, end in runs[first:]:
        if begin >= high:
            break
        if end > low:
            found.append((max(begin, low), min(end, high)))
    return found
