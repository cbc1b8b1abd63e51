"""Compares the layers of a stack with each other and finds layers that lack tensors of their siblings.

This module knows no tensor names. The lists of the config determine the kinds of layers, so it works for unknown
architectures too: their complete layers show what a layer has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

Names = frozenset[str]
MINORITY = 3
"""Several layers that lack the same tensors are incomplete if this many times as many have them; else they are a kind."""
MOST_SHAPES = 500
"""With more different layers than this there is no regularity, and comparing each with each would take too long."""


def layer_kinds(settings: Mapping[str, Any], depth: int) -> dict[int, str]:
    """Map each layer to its kind: the entries of the config's per-layer lists and its membership in lists of layer numbers."""
    kinds: dict[int, list[str]] = {layer: [] for layer in range(depth)}
    for name, value in sorted(settings.items()):
        if not isinstance(value, list):
            continue
        numbers = bool(value) and all(type(item) is int and 0 <= item < depth for item in value)
        if len(value) == depth or numbers:
            for layer, entries in kinds.items():
                entry = value[layer] if len(value) == depth else layer in value
                entries.append(f"{name}={json.dumps(entry, sort_keys=True)}")
    return {layer: ";".join(entries) for layer, entries in kinds.items()}


def find_incomplete_layers(
    layers: Mapping[int, Names], kind: Mapping[int, str], *, alike: bool = True
) -> dict[int, tuple[Names, list[int]]]:
    """Map each incomplete layer to the names it lacks and to the layers that have them.

    A layer is compared with the layers of its kind. Where it has fewer than two siblings, or the kinds are unknown
    (`alike` is False), it is compared with all layers, and then only a partly missing component counts: a kind of its own
    may lack a whole component.
    """
    groups: dict[str, dict[int, Names]] = {}
    for layer, names in layers.items():
        groups.setdefault(kind.get(layer, ""), {})[layer] = names
    all_shapes = Counter(layers.values())
    if len(all_shapes) > MOST_SHAPES:
        return {}
    incomplete: dict[int, tuple[Names, list[int]]] = {}
    for siblings in groups.values():
        numbers = Counter(siblings.values())
        for layer, names in siblings.items():
            compared: Mapping[int, Names] = siblings
            fuller = _fuller(names, numbers, torn=not alike)
            if fuller is None and len(siblings) < 3 and numbers[names] == 1:
                compared, fuller = layers, _fuller(names, all_shapes, torn=True)
            if fuller is not None:
                incomplete[layer] = (fuller - names, [other for other, theirs in compared.items() if theirs == fuller])
    return incomplete


def _fuller(names: Names, numbers: Counter[Names], *, torn: bool) -> Names | None:
    """Return the names of the siblings that have all of `names` and more: at least two, and more than are like this layer.

    Several layers that all lack one whole component are a kind of their own and not incomplete.
    """
    own = numbers[names]
    candidates = [
        other
        for other, number in numbers.items()
        if names < other
        and number >= 2
        and number > own
        and ((own == 1 and not torn) or _torn(names, other))
        and (own == 1 or MINORITY * own <= number)
    ]
    return max(candidates, key=lambda other: numbers[other], default=None)


def _torn(names: Names, other: Names) -> bool:
    """Whether `names` lacks part of a component, rather than a whole component."""
    return bool({name.partition(".")[0] for name in other - names} & {name.partition(".")[0] for name in names})
