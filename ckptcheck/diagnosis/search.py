"""Tries the causes on one difference: each alone, then two together, every guess on a sample before on the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ckptcheck.diagnosis import contents, layouts
from ckptcheck.diagnosis.blocks import misplaced
from ckptcheck.diagnosis.difference import Difference, described, difference
from ckptcheck.diagnosis.elementwise import Elementwise, changes, off_by_one
from ckptcheck.diagnosis.grid import other_grid, quantized
from ckptcheck.diagnosis.neighbours import STALE, Neighbours
from ckptcheck.diagnosis.partial import partly
from ckptcheck.diagnosis.rows import reordered, shifted
from ckptcheck.diagnosis.scale import scaled, scaled_in_groups
from ckptcheck.diagnosis.shapes import misshapen
from ckptcheck.diagnosis.sides import Key, Sides
from ckptcheck.diagnosis.unit import Unit, unit_of
from ckptcheck.diagnosis.verdict import Cause, Finding
from ckptcheck.diagnosis.view import Arranged, Arrangement, Mapped, Plain, Sample, View, equal, same

PATIENCE = 8
"""After so many unknown differences of one kind, only the causes that are cheap to try are tried on its siblings."""

Causes = tuple[Cause, ...]


@dataclass
class Search:
    """One diagnosis: the sides, and what has been learned on the way."""

    sides: Sides
    neighbours: Neighbours = field(init=False)
    unknown: Counter[str] = field(default_factory=Counter)
    costly: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.sides)

    def explain(self, key: Key) -> list[Finding]:
        """Name the causes of one difference; nothing where there is none. Members of a fused tensor may have their own."""
        missing = [name for name in key.names if name not in self.sides.actual]
        if missing:
            return [Finding(self._single(key, name), (Cause("missing", "missing"),)) for name in missing]
        unit = unit_of(key, self.sides)
        if unit is None:
            if len(key.names) > 1:
                return [finding for name in key.names for finding in self.explain(key.single(name))]
            return self._misshapen(key)
        where = difference(unit.expected, unit.actual)
        if where is None:
            return _cast(unit)
        return self._differs(unit, where)

    def _differs(self, unit: Unit, where: Difference) -> list[Finding]:
        members = [(part, at) for part in unit.members() if (at := difference(part.expected, part.actual))]
        if not members:
            return [self._one(unit, where)]
        sample = Sample.of(unit.actual, unit.expected)
        for arrangement in layouts.fused(unit):
            if equal(Arranged(Plain(unit.expected), arrangement), unit.actual, sample):
                return [_finding(unit, (_cause(arrangement),))]
        alone = [(part, at, self._simple(part, at)) for part, at in members]
        if not all(causes for _, _, causes in alone):
            together = self._two(unit, fused=True)
            if together:
                return [_finding(unit, together)]
        return [_finding(part, causes) if causes else self._compound(part, at) for part, at, causes in alone]

    def _one(self, unit: Unit, where: Difference) -> Finding:
        causes = self._simple(unit, where)
        return _finding(unit, causes) if causes else self._compound(unit, where)

    def _compound(self, unit: Unit, where: Difference) -> Finding:
        label = unit.key.label
        hasty = self.unknown[label] >= PATIENCE
        if not hasty:
            costly = self._costly(unit) if label in self.costly else ()
            if causes := costly or self._two(unit, fused=False):
                return _finding(unit, causes)
            if causes := self._costly(unit):
                self.costly.add(label)
                return _finding(unit, causes)
        self.unknown[label] += 1
        cause = Cause("unknown", "the cause is unknown", "unknown")
        return Finding(unit.key, (cause,), described(unit, where), hasty=hasty)

    def _simple(self, unit: Unit, where: Difference) -> Causes:
        """One cause, those that are cheap to try."""
        cause = contents.whole(unit.dtype, unit.expected, unit.actual)
        if cause is not None:
            return (cause,)
        previous = unit.source("previous", unit.key.place.layer, unit.key.number)
        if previous is not None and same(previous, unit.actual):
            return (STALE,)
        source, sample = Plain(unit.expected), Sample.of(unit.actual, unit.expected)
        for arrangement in layouts.alone(unit):
            if equal(Arranged(source, arrangement), unit.actual, sample):
                return (_cause(arrangement),)
        for change in changes(unit):
            if equal(Mapped(source, change.change), unit.actual, sample):
                return (_cause(change),)
        if unit.part == "norm" and unit.numeric and (offset := off_by_one(unit.dtype, unit.expected, unit.actual)):
            return (_cause(offset),)
        if found := self.neighbours.found(unit):
            return found
        cause = partly(unit, where) or contents.holes(unit.dtype, unit.expected, unit.actual)
        if cause is not None:
            return (cause,)
        return self._anywhere(unit, source, sample)

    def _anywhere(self, unit: Unit, source: View, sample: Sample, *, fused: str = "") -> Causes:
        """One cause that is read off the source and what was found: blocks and rows that moved, a factor.

        fused: the first cause where the tensor is a fused one. Ranks and padding are each member's, but where the
        interleave of Q, K and V was not undone the ranks' shards are those of the whole.
        """
        for arrangement in misplaced(unit, source, unit.actual) if fused in ("", "qkv-interleave") else ():
            if equal(Arranged(source, arrangement), unit.actual, sample):
                return (_cause(arrangement),)
        cause = None if fused else shifted(unit, source)
        cause = cause or scaled(unit, source, sample)
        return (cause,) if cause else ()

    def _costly(self, unit: Unit) -> Causes:
        """One cause that takes long to try, or that explains less than the others."""
        cause = (
            scaled_in_groups(unit)
            or quantized(unit)
            or other_grid(unit)
            or reordered(unit)
            or contents.never_written(unit.dtype, unit.expected, unit.actual)
        )
        return (cause,) if cause else ()

    def _two(self, unit: Unit, *, fused: bool) -> Causes:
        """Two causes, one after the other."""
        sample = Sample.of(unit.actual, unit.expected)
        arrangements = list(layouts.fused(unit) if fused else layouts.alone(unit))
        found = self.neighbours.found(unit, "previous")
        if found:
            return (STALE, *found)
        for view, first in self._starts(unit, arrangements):
            if sample.fits(view) and equal(view, unit.actual, sample) and len(first) > 1:
                return first
            for arrangement in arrangements:
                if equal(Arranged(view, arrangement), unit.actual, sample):
                    return (*first, _cause(arrangement))
            if not fused:
                for change in changes(unit):
                    if equal(Mapped(view, change.change), unit.actual, sample):
                        return (*first, _cause(change))
            more = self._anywhere(unit, view, sample, fused=first[0].code if fused else "")
            if more and (first[0].code, more[0].code) != ("sign", "scaled"):  # a factor has a sign of its own
                return (*first, *more)
        return ()

    def _starts(self, unit: Unit, arrangements: list[Arrangement]) -> Iterator[tuple[View, Causes]]:
        """What the first of two causes may have made of it."""
        for source, causes in self.neighbours.near(unit):
            yield Plain(source), causes
        plain = Plain(unit.expected)
        for arrangement in arrangements:
            yield Arranged(plain, arrangement), (_cause(arrangement),)
        for change in changes(unit):
            yield Mapped(plain, change.change), (_cause(change),)

    def _misshapen(self, key: Key) -> list[Finding]:
        expected, actual = self.sides.read("expected", key.names[0]), self.sides.read("actual", key.names[0])
        if expected is None or actual is None or (expected.shape == actual.shape and not expected.patterns.size):
            return []
        cause = misshapen(expected, actual, key.place.part, self.sides.geometry)
        if cause.code == "shape" and cause.confidence == "unknown":
            return [Finding(key, (Cause("unknown", "the cause is unknown", "unknown"),), cause.text)]
        return [Finding(key, (cause,))]

    def _single(self, key: Key, name: str) -> Key:
        return key if len(key.names) == 1 else key.single(name)


def _cast(unit: Unit) -> list[Finding]:
    """Equal after the cast to the dtype that was found; a difference only where the cast lost something."""
    if unit.cast is None:
        return []
    for name in unit.key.names:
        wide = unit.sides.read("expected", name)
        if wide is not None and not contents.survives(wide, unit.dtype):
            text = f"stored as {unit.dtype} instead of {unit.cast}, and rounded"
            return [Finding(unit.key, (Cause("round-trip", text, group="cast"),))]
    return []


def _cause(found: Arrangement | Elementwise) -> Cause:
    return Cause(found.code, found.text, found.confidence if isinstance(found, Elementwise) else "exact")


def _finding(unit: Unit, causes: Causes) -> Finding:
    if unit.member is None:
        return Finding(unit.key, causes)
    return Finding(unit.key, causes, member=unit.part)
