"""Decides which tensors a watch digests at a sync, and which rows of them, so that digests take a small share of the syncs' time.

The tensors are divided into groups by their names. Each group is looked at in two syncs one after the other, so that what changed
between them can be told; then the next group is. With five groups a tensor that is lost from some sync on is found within ten.
Where a group of whole tensors still takes too long, each of its tensors is looked at in part: some rows, and the next ones in the
next round, until all were seen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

GROUPS = 5
"""Groups where looking at all tensors is too much: a round takes ten syncs."""
NEGLIGIBLE = 0.02
"""Seconds of digests that are never too much for a small model, which is checked before its sync ends."""
LEAST_SECONDS = 0.0002
"""Seconds below which looking at fewer rows gains nothing: the number of tensors counts then."""
LEAST_ELEMENTS = 1 << 13
"""Elements that are looked at in any case. A step of bfloat16 weights may change one element of a thousand."""
CAST_ELEMENTS = 1 << 20
"""Elements that are looked at of a tensor that the engine casts: a step that changes what was sent may change few of them."""
CAST_SAMPLE = 1 << 15
"""Elements where what was sent is also digested as the engine casts it: then it is known whether these had to change."""
MANY = 16
"""How many times as many of a tensor in one byte an element, and of a vocabulary, of which a step may change few rows."""
TALL = 8
"""How many times as many rows as columns a vocabulary has at least."""
MOST_PARTS = 1024
CORRECTIONS = 2
"""How often the parts become smaller because a group of them still takes more than the share."""
SLOWER = 3.0
"""How many times as long the digest of a few rows takes, byte for byte, as that of a whole tensor."""


class Schedule:
    """The groups and parts of one watch.

    share: the part of a sync's time that digests may take; more makes it look at a group of the tensors at a sync. budget: the
    seconds that they may take at most; if a group takes more, the groups become smaller. has_parts: whether a tensor may be
    looked at in part; an engine that digests its tensors itself digests whole ones.
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
        """Group and number of groups → the names that were found to belong to it, and those that were found not to."""
        self._chosen: set[str] = set()
        self.left_out: set[str] = set()
        """Names that were found not to belong to the group of this sync. It grows as `includes` is asked."""
        self._rows: dict[tuple[Sequence[int], int | None], slice | None] = {}
        """Shape and least elements → the rows of the part of this sync."""
        self._rows_of = (0, 1)
        """The part that these rows are of, and the number of parts."""

    def begin(self) -> None:
        """Begin a sync at which tensors are looked at."""
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
        """The part of each tensor of this sync, from 0. It moves on when all groups had their turn."""
        return self._number // (2 * self.groups) % self.parts

    @property
    def label(self) -> str:
        """Return the group as a record has it, ``2/5`` or ``2/5, part 3/20``; "" where it is all tensors."""
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
        """Return the rows of a tensor of this shape to look at, None for all. Tensors of equal shape have equal rows.

        least: elements of these rows, where there are as many; None: the usual number.
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
        """Return the rows to look at of a tensor that the engine holds cast, None for all: those of `choose_rows`, and more.

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
        """Note what the digests of a sync took (infinity if the budget ended them), and the sync; decide on groups and parts.

        The cheaper of two looks counts: the first one of a process also loads what digests need. negligible: the seconds that are
        never too much.
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
            # what is left after these is the cost of so many tensors, whatever their size
            self._corrections += 1
            self._divide(self.groups, math.ceil(SLOWER * self.parts * spent / allowed))

    def _divide(self, groups: int, parts: int) -> None:
        self.groups, self.parts, self._number, self._costs = groups, min(self._most_parts, parts), -1, []


def least_elements(itemsize: int) -> int:
    """Return how many elements of a tensor are looked at in any case. itemsize: bytes of one; a step changes more of large ones."""
    return LEAST_ELEMENTS if itemsize <= 2 else max(1, 2 * LEAST_ELEMENTS // itemsize)
