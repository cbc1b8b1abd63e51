"""Finds saves that are not between their neighbours: those of another run, or of a branch that was given up."""

from __future__ import annotations

from typing import NamedTuple

from ckptcheck.saves.save import Save
from ckptcheck.saves.strand import Strand
from ckptcheck.saves.update_sizes import measure_distance

FAR = 0.05
"""Distance to its neighbours from which on a save may be foreign."""
NEAR = 0.2
"""Share of that distance that the neighbours have from each other at most. A walk that goes on has 1 and more."""


class ForeignSave(NamedTuple):
    """A save that is far from both its neighbours, which are near each other."""

    save: Save
    before: Save
    after: Save
    distance: float
    """To the nearer neighbour, relative to the size of the weights."""
    between: float
    """Distance of the neighbours."""


def find_foreign_saves(strand: Strand) -> list[ForeignSave]:
    """Return the saves of a strand that are foreign to it."""
    found, saves = [], strand.digested
    for before, save, after in zip(saves, saves[1:], saves[2:], strict=False):
        near, first, second = (measure_distance(*pair) for pair in ((before, after), (before, save), (save, after)))
        if near is not None and first is not None and second is not None:
            distance = min(first, second)
            if distance >= FAR and near < NEAR * distance:
                found.append(ForeignSave(save, before, after, distance, near))
    return found
