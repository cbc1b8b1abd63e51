"""Compares the layers of a stack with each other: which of them lack what their siblings have.

Nothing here knows a name. A kind of layer is what the config's lists say of it; an architecture nobody has heard of
shows its regularity in the layers that are whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

Names = frozenset[str]
MINORITY = 3
"""Several layers that lack the same are damaged where so many times as many have it; else they are a kind of their own."""
MOST_SHAPES = 500
"""More different layers than this have no regularity to learn from, and comparing each with each would never end."""


def kinds(settings: Mapping[str, Any], depth: int) -> dict[int, str]:
    """Return layer → what the settings' lists say of it: those with an entry per layer, and those of layer numbers."""
    said: dict[int, list[str]] = {layer: [] for layer in range(depth)}
    for name, value in sorted(settings.items()):
        if not isinstance(value, list):
            continue
        numbers = bool(value) and all(type(item) is int and 0 <= item < depth for item in value)
        if len(value) == depth or numbers:
            for layer, entries in said.items():
                entry = value[layer] if len(value) == depth else layer in value
                entries.append(f"{name}={json.dumps(entry, sort_keys=True)}")
    return {layer: ";".join(entries) for layer, entries in said.items()}


def incomplete(
    layers: Mapping[int, Names], kind: Mapping[int, str], *, alike: bool = True
) -> dict[int, tuple[Names, list[int]]]:
    """Return layer → what it lacks and the layers that have it.

    A layer is compared with those of its kind. Where it has fewer than two siblings, or the kinds are not known
    (`alike` is False), it is compared with all layers, and then only a torn component counts: a kind of its own may
    lack a component as a whole.
    """
    groups: dict[str, dict[int, Names]] = {}
    for layer, names in layers.items():
        groups.setdefault(kind.get(layer, ""), {})[layer] = names
    everybody = Counter(layers.values())
    if len(everybody) > MOST_SHAPES:
        return {}
    found: dict[int, tuple[Names, list[int]]] = {}
    for siblings in groups.values():
        numbers = Counter(siblings.values())
        for layer, names in siblings.items():
            compared: Mapping[int, Names] = siblings
            fuller = _fuller(names, numbers, torn=not alike)
            if fuller is None and len(siblings) < 3 and numbers[names] == 1:
                compared, fuller = layers, _fuller(names, everybody, torn=True)
            if fuller is not None:
                found[layer] = (fuller - names, [other for other, theirs in compared.items() if theirs == fuller])
    return found


def _fuller(names: Names, numbers: Counter[Names], *, torn: bool) -> Names | None:
    """Find what siblings have that have all of this and more: at least two of them, and more than are like this one.

    Several layers that all lack one whole component are a kind of their own, not damaged.
    """
    own = numbers[names]
    found = [
        other
        for other, number in numbers.items()
        if names < other
        and number >= 2
        and number > own
        and ((own == 1 and not torn) or _torn(names, other))
        and (own == 1 or MINORITY * own <= number)
    ]
    return max(found, key=lambda other: numbers[other], default=None)


def _torn(names: Names, other: Names) -> bool:
    """Whether something is missing from within a component, rather than a component as a whole."""
    return bool({name.partition(".")[0] for name in other - names} & {name.partition(".")[0] for name in names})
