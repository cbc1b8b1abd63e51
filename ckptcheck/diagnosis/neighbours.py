"""What was found is something else that was expected: another layer's, another expert's, or the previous version's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.sides import Side, Sides
from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import same

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

MOST = 20_000
"""Neighbours of one kind that are looked at."""
NEAR = 8
"""Layers on either side, and experts, that are tried together with a second cause."""
STALE = Cause("stale", "it still is the previous version")

Where = tuple[int | None, int | None]


@dataclass
class Neighbours:
    """Fingerprints of all siblings, taken once per kind of tensor."""

    sides: Sides
    _known: dict[tuple[Any, ...], dict[bytes, list[Where]]] = field(default_factory=dict)

    def places(self, unit: Unit) -> Iterator[Where]:
        """Layer and expert of every sibling, the unit's own layer first, then the nearest."""
        place = unit.key.place
        layers: list[int | None] = list(self.sides.layers.get(place.stem, [])) or [None]
        own = place.layer or 0
        layers.sort(key=lambda layer: abs((layer or 0) - own))
        number = 0
        for layer in layers:
            for expert in self.experts_of(unit, layer):
                yield layer, expert
                if (number := number + 1) >= MOST:
                    return

    def experts_of(self, unit: Unit, layer: int | None) -> list[int | None]:
        """The experts that have the same tensor in a layer; [None] where it is no expert's."""
        place, number = unit.key.place, unit.key.number
        if number is None:
            return [None]
        if unit.key.expert is None:
            return list(self.sides.experts.get((place.stem, layer), []))
        stacked = self.sides.read("expected", place.elsewhere(layer, None))
        return list(range(stacked.shape[0])) if stacked is not None and stacked.shape else []

    def found(self, unit: Unit, side: Side = "expected") -> tuple[Cause, ...]:
        """Whose tensor it is, as causes; empty if nobody's."""
        if unit.key.place.layer is None and unit.key.number is None:
            return ()
        kind = (side, unit.key.place.stem, unit.key.expert is not None, unit.member, unit.dtype, unit.actual.shape)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = {}
            for layer, expert in self.places(unit):
                source = unit.source(side, layer, expert)
                if source is not None:
                    known.setdefault(_fingerprint(source), []).append((layer, expert))
        own = (unit.key.place.layer, unit.key.number)
        hits = [where for where in known.get(_fingerprint(unit.actual), []) if where != own]
        hits.sort(key=lambda where: (where[0] != own[0], where[1] != own[1], abs((where[0] or 0) - (own[0] or 0))))
        for layer, expert in hits:
            source = unit.source(side, layer, expert)
            if source is not None and same(source, unit.actual):
                return elsewhere(unit, layer, expert)
        return ()

    def near(self, unit: Unit) -> Iterator[tuple[NDArray[Any], tuple[Cause, ...]]]:
        """What may have been taken instead, to be tried with a second cause: the previous version, then near siblings."""
        layer, expert = unit.key.place.layer, unit.key.number
        previous = unit.source("previous", layer, expert)
        if previous is not None and not same(previous, unit.expected):
            yield previous, (STALE,)
        layers: list[int | None] = [layer]
        if layer is not None:
            siblings = self.sides.layers.get(unit.key.place.stem, [])
            layers += [other for other in siblings if 0 < abs(other - layer) <= NEAR]
            layers += [other for other in siblings if abs(other - layer) > NEAR and (other - layer) % 4 == 0][
                : 2 * NEAR
            ]
        for other in layers:
            experts: list[int | None] = [expert] if other != layer else self.experts_of(unit, layer)[: 2 * NEAR]
            for number in experts:
                if (other, number) != (layer, expert):
                    source = unit.source("expected", other, number)
                    if source is not None:
                        yield source, elsewhere(unit, other, number)


def elsewhere(unit: Unit, layer: int | None, expert: int | None) -> tuple[Cause, ...]:
    """The causes that say whose tensor it is."""
    causes = []
    if layer != unit.key.place.layer:
        causes.append(Cause("layer", f"it is that of layer {layer}", group="layer", layer=layer))
    if expert != unit.key.number:
        causes.append(Cause("expert", f"it is that of expert {expert}", group="expert", expert=expert))
    return tuple(causes)


def _fingerprint(matrix: NDArray[Any]) -> bytes:
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, 16).astype(np.int64))
    columns = np.unique(np.linspace(0, matrix.shape[1] - 1, 8).astype(np.int64))
    return matrix[rows[:, None], columns[None]].tobytes()
