"""The same part of each save of a run, and what moved from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ckptcheck.runs.saves.save import Save, TensorRecord
from ckptcheck.runs.saves.update_sizes import measure_changed_share, measure_updates, take_median

LEAST_MATRIX = 1024
"""Least elements of a matrix: an optimizer's step changes some of so many, even if weights are rounded to 16 bits."""
FAR = 0.05
"""Least distance of a foreign save from its neighbours, relative to the size of the weights."""
NEAR = 0.2
"""Largest distance of the neighbours, as a share of that. In an ordinary run it is 1 or more: they are two intervals apart."""


@dataclass(frozen=True)
class Interval:
    """Two successive saves of a strand that were both digested."""

    before: Save
    after: Save

    @cached_property
    def moved(self) -> frozenset[str]:
        """Weights whose digests differ."""
        return _find_moved(self.before.weights, self.after.weights)

    @cached_property
    def still(self) -> frozenset[str]:
        """Weights that are equal in both saves."""
        return _find_still(self.before.weights, self.after.weights)

    @cached_property
    def moved_states(self) -> frozenset[str]:
        """Tensors of the optimizer whose digests differ."""
        return _find_moved(self.before.states, self.after.states)

    @cached_property
    def still_states(self) -> frozenset[str]:
        """Tensors of the optimizer that are equal in both saves."""
        return _find_still(self.before.states, self.after.states)

    @cached_property
    def updates(self) -> dict[str, float]:
        """Weight → how far it moved, relative to its size (`measure_updates`)."""
        return measure_updates(self.before, self.after)

    @cached_property
    def changed_share(self) -> float:
        """The share of changed elements in the matrices that moved, estimated from the samples.

        If weights are rounded to 16 bits, a step of training may change one element in a thousand.
        """
        names = [name for name in self.moved if len(self.after.weights[name].shape) >= 2]
        return measure_changed_share(self.before, self.after, names)

    @cached_property
    def distance(self) -> float | None:
        """The median update of the matrices; None without a measured matrix."""
        return take_median(self.updates, self.after)


def _find_moved(before: Mapping[str, TensorRecord], after: Mapping[str, TensorRecord]) -> frozenset[str]:
    return frozenset(
        name
        for name, record in after.items()
        if name in before and before[name].shape == record.shape and before[name].content != record.content
    )


def _find_still(before: Mapping[str, TensorRecord], after: Mapping[str, TensorRecord]) -> frozenset[str]:
    return frozenset(
        name for name, record in after.items() if name in before and before[name].content == record.content
    )


@dataclass(frozen=True)
class Strand:
    """The same part of each save of a run, oldest first."""

    name: str
    """The path below the run with ``*`` in place of the step."""
    saves: tuple[Save, ...]

    @cached_property
    def digested(self) -> tuple[Save, ...]:
        """The saves whose weights were digested, one for each step."""
        by_step: dict[int, Save] = {}
        for save in self.saves:
            if save.is_digested:
                by_step[save.number] = save
        return tuple(by_step.values())

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """Each digested save with the one before it."""
        return tuple(Interval(before, after) for before, after in pairwise(self.digested))

    @cached_property
    def moved(self) -> frozenset[str]:
        """Weights that moved in any interval, each once."""
        return frozenset[str]().union(*(interval.moved for interval in self.intervals))

    @cached_property
    def foreign(self) -> tuple[ForeignSave, ...]:
        """The saves that are not between their neighbours."""
        return tuple(find_foreign_saves(self.digested, [interval.distance for interval in self.intervals]))

    @property
    def last(self) -> Save:
        """The save with the highest step."""
        return self.saves[-1]

    @property
    def unit(self) -> str:
        """What the folders count: ``step``, or ``epoch``."""
        return "epoch" if self.saves[0].word == "epoch" else "step"


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


def is_large_matrix(record: TensorRecord) -> bool:
    """Whether a tensor is a matrix, or several, with so many elements that each step of an optimizer changes some."""
    return len(record.shape) >= 2 and record.elements >= LEAST_MATRIX
