"""Decides which tensors a watch digests at a sync, so that digests take a small share of the syncs' time.

It divides the tensors into groups by their names. The watch digests one group in two consecutive syncs, to compare them, and then
goes on to the next group. With five groups it finds a tensor that a sync loses within ten syncs.
"""

from __future__ import annotations

import math
import zlib

NEGLIGIBLE = 0.02
"""Seconds of a sync that digests may always take: a step of a job takes seconds."""
MOST_GROUPS = 64
"""With more groups, a round of them would outlast many a job; the digests then take more than their share."""


class Schedule:
    """The groups of one watch.

    share: the part of the syncs' time that digests may take; if they take more, the tensors are divided into more groups.
    budget: the seconds of one sync that they may take at most; a sync that exceeds it doubles the groups at once.
    """

    def __init__(self, share: float, budget: float) -> None:
        self.share, self.budget, self.groups = share, budget, 1
        self._number = -1
        self._costs: list[tuple[float, float]] = []
        """Seconds of the digests and of the sync, for each sync of this round."""

    def begin(self) -> None:
        """Begin a sync that digests tensors."""
        self._number += 1

    @property
    def group(self) -> int:
        """The group of this sync, from 0."""
        return self._number // 2 % self.groups

    @property
    def label(self) -> str:
        """The group as the record writes it, ``2/5``; "" if there is one group."""
        return f"{self.group + 1}/{self.groups}" if self.groups > 1 else ""

    def includes(self, name: str) -> bool:
        """Return whether a tensor belongs to the group of this sync."""
        return self.groups == 1 or zlib.crc32(name.encode()) % self.groups == self.group

    def note(self, spent: float, seconds: float) -> None:
        """Decide on the groups of the next syncs: at the end of a round, or at once where the budget ended the digests.

        The cheaper of two syncs of a group counts, because the first of a process also loads the code of the digests.

        Args:
            spent: seconds that the digests of this sync took; infinity if the budget ended them.
            seconds: seconds that the sync took.
        """
        if math.isinf(spent):
            self._divide(2 * self.groups)
            return
        self._costs.append((spent, seconds))
        if len(self._costs) < 2 * self.groups:
            return
        cheaper = list(map(min, self._costs[::2], self._costs[1::2]))
        self._costs = []
        spent, seconds = (sum(column) / len(cheaper) for column in zip(*cheaper, strict=True))
        allowed = max(NEGLIGIBLE, self.share * seconds)
        if spent > allowed:
            self._divide(math.ceil(self.groups * spent / allowed))

    def _divide(self, groups: int) -> None:
        self.groups, self._number, self._costs = min(groups, MOST_GROUPS), -1, []
