"""Decides which tensors a watch digests at a sync, so that digests take a small share of the time of the syncs.

The tensors are divided into groups by their names. Each group is looked at in two syncs one after the other, so that what changed
between them can be told; then the next group is. With five groups a tensor that is lost from some sync on is found within ten.
"""

from __future__ import annotations

import zlib

GROUPS = 5
"""Groups where looking at all tensors is too much: a round takes ten syncs."""
NEGLIGIBLE = 0.02
"""Seconds of digests that are never too much."""


class Schedule:
    """The groups of one watch.

    share: the part of a sync's time that digests may take; more makes it look at a group of the tensors at a sync. budget: the
    seconds that they may take at most; if a group takes more, the groups become smaller.
    """

    def __init__(self, share: float, budget: float) -> None:
        self.share, self.budget, self.groups = share, budget, 1
        self._number = -1
        self._costs: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Begin a sync at which tensors are looked at."""
        self._number += 1

    @property
    def group(self) -> int:
        """The group of this sync, from 0."""
        return self._number // 2 % self.groups

    @property
    def label(self) -> str:
        """Return the group as a record has it, ``2/5``; "" where it is all tensors."""
        return f"{self.group + 1}/{self.groups}" if self.groups > 1 else ""

    def includes(self, name: str) -> bool:
        """Return whether a tensor belongs to the group of this sync."""
        return self.groups == 1 or zlib.crc32(name.encode()) % self.groups == self.group

    def note(self, spent: float, seconds: float) -> None:
        """Note what the digests of a sync took (infinity if the budget ended them), and the sync; decide on the groups.

        The cheaper look counts: the first one of a process also loads what digests need.
        """
        if spent == float("inf"):
            self._divide(GROUPS if self.groups == 1 else 2 * self.groups)
            return
        self._costs.append((spent, seconds))
        if self._number % 2 and self.groups == 1:
            spent, seconds = min(self._costs[-2:])
            if spent > max(NEGLIGIBLE, self.share * seconds):
                self._divide(GROUPS)

    def _divide(self, groups: int) -> None:
        self.groups, self._number, self._costs = groups, -1, []
