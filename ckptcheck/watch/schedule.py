"""Decides which tensors a watch digests at a sync, and which rows of them, so that digests take a small share of the syncs' time.

It divides the tensors into groups by their names. The watch digests one group in two consecutive syncs, to compare them, and then
goes on to the next group. With five groups it finds a tensor that a sync loses within ten syncs. If a group of whole tensors still
takes too long, the watch digests some rows of each tensor, and the next rows in the next round, until it has seen all.

The numbers below keep the share with the models of `tests/benchmarks`, on two CPU cores; docs/watch.md has the measurements.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

GROUPS = 5
"""Number of groups, once digests of all tensors take too long: a round takes ten syncs."""
NEGLIGIBLE = 0.02
"""Seconds that digests may always take in a model small enough to be checked before its sync ends."""
LEAST_SECONDS = 0.0002
"""Seconds below which fewer rows save nothing: the cost is then that of so many tensors, whatever their size."""
LEAST_ELEMENTS = 1 << 13
"""Least elements of a tensor to digest. A step of bfloat16 weights may change one element of a thousand: eight of these."""
CAST_ELEMENTS = 1 << 20
"""Elements to digest of a tensor that the engine casts: the cast hides most of the changes of a small step."""
CAST_SAMPLE = 1 << 15
"""Elements to digest if the watch casts them as the engine does: it then knows whether they had to change."""
MANY = 16
"""Factor on `CAST_ELEMENTS` for one-byte dtypes, which hide more changes, and for a vocabulary: a step changes few of its rows."""
TALL = 8
"""A matrix with this many times as many rows as columns is taken for a vocabulary: few layers are as tall."""
MOST_PARTS = 1024
"""Most parts of a tensor: with five groups a round of them takes ten thousand syncs."""
CORRECTIONS = 2
"""How often a group that still exceeds the share gets smaller parts."""
SLOWER = 3.0
"""Time per byte of a digest of a few rows, relative to that of a whole tensor."""


class Schedule:
    """The groups and parts of one watch.

    share: the part of a sync's time that digests may take; if they take more, each sync digests one group. budget: the seconds that
    they may take at most; if a group takes more, the groups become smaller. has_parts: whether the watch can digest a part of a
    tensor: an engine that computes the digests itself digests whole tensors.
    """

    def __init__(self, share: float, budget: float, *, has_parts: bool = True) -> None:
        self.share, self.budget, self.groups, self.parts = share, budget, 1, 1
        self._most_parts = MOST_PARTS if has_parts else 1
        self._number = -1
        self._group = 0
        """The group of the sync that has begun."""
        self._corrections = 0
        self._costs: list[tuple[float, float]] = []
        self._names: dict[tuple[int, int], tuple[set[str], set[str]]] = {}
        """Group and number of groups → the known names inside it, and those outside."""
        self._chosen: set[str] = set()
        self.left_out: set[str] = set()
        """Known names outside the group of this sync. Each call of `includes` may add one."""
        self._rows: dict[tuple[Sequence[int], int | None], slice | None] = {}
        """Shape and least elements → the rows that this sync digests."""
        self._rows_of = (0, 1)
        """The part and the number of parts for which `_rows` was computed."""

    def begin(self) -> None:
        """Begin a sync that digests tensors."""
        self._number += 1
        self._group = self.group
        self._chosen, self.left_out = self._names.setdefault((self._group, self.groups), (set(), set()))
        if self._rows_of != (self.part, self.parts):
            self._rows_of = (self.part, self.parts)
            self._rows.clear()

    @property
    def group(self) -> int:
        """The group of this sync, from 0."""
        return self._number // 2 % self.groups

    @property
    def part(self) -> int:
        """The part of each tensor in this sync, from 0. The next part begins when every group has had its turn."""
        return self._number // (2 * self.groups) % self.parts

    @property
    def label(self) -> str:
        """The group as the record writes it, ``2/5`` or ``2/5, part 3/20``; "" if there is one group."""
        group = f"{self.group + 1}/{self.groups}" if self.groups > 1 else ""
        return f"{group}, part {self.part + 1}/{self.parts}" if self.parts > 1 else group

    def includes(self, name: str) -> bool:
        """Return whether a tensor belongs to the group of this sync."""
        if self.groups == 1 or name in self._chosen:
            return True
        if name in self.left_out:
            return False
        is_chosen = zlib.crc32(name.encode()) % self.groups == self._group
        (self._chosen if is_chosen else self.left_out).add(name)
        return is_chosen

    def choose_rows(self, shape: Sequence[int], least: int | None = None) -> slice | None:
        """Return the rows of a tensor of this shape to digest, None for all. Tensors of equal shape have equal rows.

        least: the least number of elements in these rows; None for `LEAST_ELEMENTS`.
        """
        if self.parts == 1 or not shape:
            return None
        try:
            return self._rows[shape, least]
        except KeyError:
            rows = self._rows[shape, least] = self._find_rows(shape, least)
            return rows

    def _find_rows(self, shape: Sequence[int], least: int | None) -> slice | None:
        parts = min(self.parts, shape[0], math.prod(shape) // (least or LEAST_ELEMENTS))
        if parts < 2:
            return None
        part = self.part % parts
        return slice(shape[0] * part // parts, shape[0] * (part + 1) // parts)

    def choose_rows_of_cast(self, shape: Sequence[int], itemsize: int) -> slice | None:
        """Return the rows to digest of a tensor that the engine casts, None for all: the rows of `choose_rows`, and more.

        itemsize: bytes of an element in the engine.
        """
        rows = self.choose_rows(shape)
        if rows is None:
            return None
        width = math.prod(shape[1:])
        few = itemsize == 1 or shape[0] > TALL * width
        least = math.ceil(CAST_ELEMENTS * (MANY if few else 1) / width)
        if 2 * least > shape[0]:
            return None
        if rows.stop - rows.start >= least:
            return rows
        start = min(rows.start, shape[0] - least)
        return slice(start, start + least)

    def note(self, spent: float, seconds: float, negligible: float = NEGLIGIBLE) -> None:
        """Decide on groups and parts for the next syncs.

        The cheaper of two syncs counts, because the first of a process also loads the code of the digests.

        Args:
            spent: seconds that the digests of this sync took; infinity if the budget ended them.
            seconds: seconds that the sync took.
            negligible: seconds that digests may always take.
        """
        if spent == float("inf"):
            self._divide(GROUPS if self.groups == 1 else 2 * self.groups, 8 * self.parts)
            return
        self._costs.append((spent, seconds))
        if not self._number % 2:
            return
        spent, seconds = min(self._costs[-2:])
        allowed = max(LEAST_SECONDS, self.share * seconds)
        if self.groups == 1:
            if spent > max(negligible, allowed):
                self._divide(GROUPS, math.ceil(SLOWER * spent / GROUPS / allowed))
        elif spent > allowed and self._corrections < CORRECTIONS:
            # further corrections save nothing: the rest is a cost per tensor, whatever its size
            self._corrections += 1
            self._divide(self.groups, math.ceil(SLOWER * self.parts * spent / allowed))

    def _divide(self, groups: int, parts: int) -> None:
        self.groups, self.parts, self._number, self._costs = groups, min(self._most_parts, parts), -1, []


def least_elements(itemsize: int) -> int:
    """Return the least number of elements of a tensor to digest. itemsize: bytes of one; a step changes more of large elements."""
    return LEAST_ELEMENTS if itemsize <= 2 else max(1, 2 * LEAST_ELEMENTS // itemsize)
