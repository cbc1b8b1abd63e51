"""Finds tensors that hold what belongs to another layer or expert, or to the previous version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.inputs import DiagnosisInput, SourceName
from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import matrices_equal
from ckptcheck.compare.diagnosis.verdict import Cause

MAX_READ_BYTES = 1 << 34
"""Bytes of siblings that are read to find the source of a tensor; the nearest siblings come first."""
NEAR = 8
"""Layers on either side, and experts, that are tried together with a second cause."""
STALE = Cause("stale", "still the previous version")


class SiblingIndex(msgspec.Struct):
    """Fingerprints of the same tensor in other layers and experts, computed when a layer is first needed."""

    input: DiagnosisInput
    _known: dict[tuple[Any, ...], dict[bytes, list[int | None]]] = msgspec.field(default_factory=dict)
    _offsets: dict[int, None] = msgspec.field(default_factory=dict)
    _read: int = 0

    def experts_of(self, unit: MatrixPair, layer: int | None) -> list[int | None]:
        """Return the experts that have the same tensor in a layer; [None] if the tensor belongs to no expert."""
        place, number = unit.key.parsed_name, unit.key.expert_index
        if number is None:
            return [None]
        if unit.key.expert is None:
            return list(self.input.experts_by_stem.get((place.stem, layer), []))
        stacked = self.input.read("expected", place.with_numbers(layer, None))
        return list(range(stacked.shape[0])) if stacked is not None and stacked.shape else []

    def layers_of(self, unit: MatrixPair) -> list[int | None]:
        """Return the layers that have the same tensor: its own, those at offsets that explained other tensors, then the nearest."""
        own = unit.key.parsed_name.layer
        if own is None:
            return [None]
        offsets = list(self._offsets)

        def rank(layer: int) -> tuple[int, int]:
            offset = layer - own
            first = 0 if not offset else 1 + offsets.index(offset) if offset in self._offsets else len(offsets) + 1
            return first, abs(offset)

        return [*sorted(self.input.layers_by_stem.get(unit.key.parsed_name.stem, []), key=rank)]

    def find_source(self, unit: MatrixPair, side: SourceName = "expected") -> tuple[Cause, ...]:
        """Return the layer and expert whose tensor this is, as causes; empty if it is none of theirs."""
        own = (unit.key.parsed_name.layer, unit.key.expert_index)
        if own == (None, None):
            return ()
        fingerprint = _fingerprint(unit.actual)
        for layer in self.layers_of(unit):
            hits = self._layer(unit, side, layer).get(fingerprint, [])
            for expert in sorted(hits, key=lambda expert: expert != own[1]):
                if (layer, expert) == own:
                    continue
                source = unit.read_sibling(side, layer, expert)
                if source is not None and matrices_equal(source, unit.actual):
                    if layer is not None and own[0] is not None and layer != own[0]:
                        self._offsets[layer - own[0]] = None
                    return location_causes(unit, layer, expert)
        return ()

    def _layer(self, unit: MatrixPair, side: SourceName, layer: int | None) -> dict[bytes, list[int | None]]:
        """Return fingerprint → experts, for one kind of tensor in one layer; empty once MAX_READ_BYTES are read."""
        stem, stacked = unit.key.parsed_name.stem, unit.key.expert is not None
        kind = (side, stem, stacked, unit.member, unit.dtype, unit.actual.shape, layer)
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = {}
            for expert in self.experts_of(unit, layer):
                if self._read > MAX_READ_BYTES:
                    break
                source = unit.read_sibling(side, layer, expert)
                if source is not None:
                    self._read += source.nbytes
                    known.setdefault(_fingerprint(source), []).append(expert)
        return known

    def iterate_likely_sources(self, unit: MatrixPair) -> Iterator[tuple[NDArray[Any], tuple[Cause, ...]]]:
        """Yield what may be here instead, to be tried with a second cause: the previous version, then near siblings."""
        layer, expert = unit.key.parsed_name.layer, unit.key.expert_index
        previous = unit.read_sibling("previous", layer, expert)
        if previous is not None and not matrices_equal(previous, unit.expected):
            yield previous, (STALE,)
        layers: list[int | None] = [layer]
        if layer is not None:
            siblings = self.input.layers_by_stem.get(unit.key.parsed_name.stem, [])
            layers += [other for other in siblings if 0 < abs(other - layer) <= NEAR]
            layers += [other for other in siblings if abs(other - layer) > NEAR and (other - layer) % 4 == 0][
                : 2 * NEAR
            ]
        for other in layers:
            experts: list[int | None] = [expert] if other != layer else self.experts_of(unit, layer)[: 2 * NEAR]
            for number in experts:
                if (other, number) != (layer, expert):
                    source = unit.read_sibling("expected", other, number)
                    if source is not None:
                        yield source, location_causes(unit, other, number)


def location_causes(unit: MatrixPair, layer: int | None, expert: int | None) -> tuple[Cause, ...]:
    """Return the causes that name the layer and expert whose tensor this is."""
    causes = []
    if layer != unit.key.parsed_name.layer:
        causes.append(Cause("layer", f"that of layer {layer}", group="layer", layer=layer))
    if expert != unit.key.expert_index:
        causes.append(Cause("expert", f"that of expert {expert}", group="expert", expert=expert))
    return tuple(causes)


def _fingerprint(matrix: NDArray[Any]) -> bytes:
    """Return a few elements that distinguish siblings."""
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, 16).astype(np.int64))
    columns = np.unique(np.linspace(0, matrix.shape[1] - 1, 8).astype(np.int64))
    return matrix[rows[:, None], columns[None]].tobytes()
