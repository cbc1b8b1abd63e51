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

MOST = 1 << 34
"""Bytes of neighbours that are read to find out whose tensor it is; the nearest come first."""
NEAR = 8
"""Layers on either side, and experts, that are tried together with a second cause."""
STALE = Cause("stale", "still the previous version")


@dataclass
class Neighbours:
    """Fingerprints of siblings, taken layer by layer when a layer is first asked for."""

    sides: Sides
    _known: dict[tuple[Any, ...], dict[bytes, list[int | None]]] = field(default_factory=dict)
    _offsets: dict[int, None] = field(default_factory=dict)
    _read: int = 0

    def experts_of(self, unit: Unit, layer: int | None) -> list[int | None]:
        """The experts that have the same tensor in a layer; [None] where it is no expert's."""
        place, number = unit.key.place, unit.key.number
        if number is None:
            return [None]
        if unit.key.expert is None:
            return list(self.sides.experts.get((place.stem, layer), []))
        stacked = self.sides.read("expected", place.elsewhere(layer, None))
        return list(range(stacked.shape[0])) if stacked is not None and stacked.shape else []

    def layers_of(self, unit: Unit) -> list[int | None]:
        """The layers that have the same tensor: its own, those at offsets that explained others, then the nearest."""
        own = unit.key.place.layer
        if own is None:
            return [None]
        offsets = list(self._offsets)

        def rank(layer: int) -> tuple[int, int]:
            offset = layer - own
            first = 0 if not offset else 1 + offsets.index(offset) if offset in self._offsets else len(offsets) + 1
            return first, abs(offset)

        return [*sorted(self.sides.layers.get(unit.key.place.stem, []), key=rank)]

    def found(self, unit: Unit, side: Side = "expected") -> tuple[Cause, ...]:
        """Whose tensor it is, as causes; empty if nobody's."""
        own = (unit.key.place.layer, unit.key.number)
        if own == (None, None):
            return ()
        shown = _fingerprint(unit.actual)
        for layer in self.layers_of(unit):
            hits = self._layer(unit, side, layer).get(shown, [])
            for expert in sorted(hits, key=lambda expert: expert != own[1]):
                if (layer, expert) == own:
                    continue
                source = unit.source(side, layer, expert)
                if source is not None and same(source, unit.actual):
                    if layer is not None and own[0] is not None and layer != own[0]:
                        self._offsets[layer - own[0]] = None
                    return elsewhere(unit, layer, expert)
        return ()

    def _layer(self, unit: Unit, side: Side, layer: int | None) -> dict[bytes, list[int | None]]:
        """Fingerprint → experts, of one kind of tensor in one layer; empty where too much has been read already."""
        stem, stacked = unit.key.place.stem, unit.key.expert is not None
        kind = (side, stem, stacked, unit.member, unit.dtype, unit.actual.shape, layer)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = {}
            for expert in self.experts_of(unit, layer):
                if self._read > MOST:
                    break
                source = unit.source(side, layer, expert)
                if source is not None:
                    self._read += source.nbytes
                    known.setdefault(_fingerprint(source), []).append(expert)
        return known

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
        causes.append(Cause("layer", f"that of layer {layer}", group="layer", layer=layer))
    if expert != unit.key.number:
        causes.append(Cause("expert", f"that of expert {expert}", group="expert", expert=expert))
    return tuple(causes)


def _fingerprint(matrix: NDArray[Any]) -> bytes:
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, 16).astype(np.int64))
    columns = np.unique(np.linspace(0, matrix.shape[1] - 1, 8).astype(np.int64))
    return matrix[rows[:, None], columns[None]].tobytes()
