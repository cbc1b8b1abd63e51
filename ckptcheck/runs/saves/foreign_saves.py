"""Finds saves of another run, or of an abandoned branch: they are far from both neighbours, which are near each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.update_sizes import measure_updates, take_median

FAR = 0.05
"""Least distance of a foreign save from its neighbours, relative to the size of the weights."""
NEAR = 0.2
"""Largest distance of the neighbours, as a share of that. In an ordinary run it is 1 or more: they are two intervals apart."""


class ForeignSave(NamedTuple):
    """A save that is far from both its neighbours, which are near each other."""

    save: Save
    before: Save
    after: Save
    distance: float
    """To the nearer neighbour, relative to the size of the weights."""
    between: float
    """Distance of the neighbours."""


def find_foreign_saves(saves: Sequence[Save], distances: Sequence[float | None]) -> list[ForeignSave]:
    """Return the saves that are foreign to a series. distances: of each save to the one after it."""
    found = []
    for place in range(1, len(saves) - 1):
        first, second = distances[place - 1], distances[place]
        if first is None or second is None or min(first, second) < FAR:
            continue
        before, save, after = saves[place - 1 : place + 2]
        near = take_median(measure_updates(before, after), after)
        if near is not None and near < NEAR * min(first, second):
            found.append(ForeignSave(save, before, after, min(first, second), near))
    return found
