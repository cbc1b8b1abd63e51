"""Decides which tensors a watch digests at a sync, so that digests take a small share of the job's steps.

It divides the tensors into groups by their names. The watch digests one group in two consecutive syncs, to compare them, and then
goes on to the next group. A group that follows begins where the last one ended, also where their number has changed meanwhile: so
each tensor has its turn within `WITHIN` syncs, whatever the load.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import deque
from collections.abc import Mapping, Set
from statistics import median

NEGLIGIBLE = 0.02
"""Seconds of a step that digests may always take: a step of a job takes seconds."""
MOST_GROUPS = 8
"""With more groups, a round of them would outlast many a job; the digests then take more than their share."""
WITHIN = 2 * MOST_GROUPS
"""Syncs within which each tensor is looked at."""
PARTS = 64
"""Most groups of all, where one of `MOST_GROUPS` takes more than the budget: a power of two, as every number of groups."""
REMEMBERED = 5
"""Syncs and steps that tell what a look costs, and how long a step takes. The cheapest look counts: a machine that was busy for a
moment, and the first sync, which loads the code of the digests, say nothing of the next one."""


class Schedule:
    """The groups of one watch.

    share: the part of the CPU time of a step that digests may take; if they take more, the tensors are divided into more groups.
    budget: the seconds of one sync that they may take at most; a sync that exceeds it doubles the groups at once.
    """

    def __init__(self, share: float, budget: float) -> None:
        self.share, self.budget, self.groups = share, budget, 1
        self._place, self._looks = 0, 0
        """Where the group begins, in `PARTS`, and how often it was looked at."""
        self._is_whole, self._wanted, self._since_whole = False, 0, 0
        self._began: float | None = None
        self._costs: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds that a look at all tensors would have taken."""
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        """Seconds from one sync to the next."""

    def begin(self) -> None:
        """Begin a sync that digests tensors."""
        now = time.monotonic()
        if self._began is not None:
            self._steps.append(now - self._began)
        self._began = now
        self._since_whole += 1
        self._is_whole = self._wanted > 0
        self._wanted = max(0, self._wanted - 1)

    def look_whole(self) -> None:
        """Have the next two syncs look at all tensors: something is wrong. It is done once in a round of the groups."""
        if self.groups > 1 and self._since_whole >= WITHIN:
            self._wanted, self._since_whole = 2, 0

    @property
    def label(self) -> str:
        """The group as the record writes it, ``2/4``; "" for all tensors."""
        if self.groups == 1 or self._is_whole:
            return ""
        return f"{self._place * self.groups // PARTS + 1}/{self.groups}"

    def includes(self, name: str) -> bool:
        """Return whether a tensor belongs to the group of this sync."""
        if self.groups == 1 or self._is_whole:
            return True
        return (zlib.crc32(name.encode()) * PARTS >> 32) * self.groups // PARTS == self._place * self.groups // PARTS

    def note(self, spent: float, looked: float | None = None) -> None:
        """Decide on the groups of the next syncs: after two looks at a group, or at once where the budget ended the digests.

        Args:
            spent: seconds of the CPU that the digests of this sync took; infinity if the budget ended them.
            looked: the share of all bytes that they read; None where it is not known: then that of the group.
        """
        if self._is_whole:
            return
        if math.isinf(spent):
            self._turn(min(2 * self.groups, PARTS), moves=self.groups == PARTS)
            return
        if looked != 0:  # a group may have no tensor, and tells nothing then
            self._costs.append(spent * self.groups if looked is None else spent / looked)
        self._looks += 1
        if self._looks == 2:
            self._turn(self.choose_groups(), moves=True)

    def choose_groups(self) -> int:
        """Return the least number of groups whose digests take no more than the share of a step and the budget."""
        cost, groups = min(self._costs, default=0.0), 1
        allowed = max(NEGLIGIBLE, self.share * median(self._steps)) if self._steps else NEGLIGIBLE
        while groups < PARTS and (cost > groups * self.budget or (groups < MOST_GROUPS and cost > groups * allowed)):
            groups *= 2
        return groups

    def _turn(self, groups: int, *, moves: bool) -> None:
        """Go on with a number of groups. moves: whether the group that was looked at is done."""
        if moves:
            self._place = (self._place + PARTS // self.groups) % PARTS
        self.groups, self._looks = groups, 0
        self._place -= self._place % (PARTS // groups)


class Coverage:
    """Which tensors a watch has looked at lately."""

    def __init__(self) -> None:
        self.share: float | None = None
        """Share of the tensors that passed at the last sync which were looked at within `WITHIN` syncs; None before the first."""
        self.counts = 0, 0
        """How many these are, and how many passed."""
        self._number = 0
        self._last: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def note(self, names: Set[str], looked: Mapping[str, int]) -> float | None:
        """Note a sync, and return the share of all bytes that it read; None where no tensor had a name.

        names: of all tensors that passed. looked: name → bytes of those that were digested.
        """
        self._number += 1
        names = names | looked.keys() or self._last.keys()
        if not names:
            return None
        self._last |= dict.fromkeys(looked, self._number)
        self._sizes |= looked
        self.counts = sum(self._number - self._last.get(name, -WITHIN) < WITHIN for name in names), len(names)
        self.share = self.counts[0] / len(names)
        total = sum(self._sizes.get(name, 0) for name in names)
        return sum(looked.values()) / total if total else None
