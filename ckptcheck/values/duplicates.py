"""Layers, matrices and experts that hold the bytes of others.

Two tensors are compared only where dtype, shape and largest magnitude agree; then their beginnings, then all bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ckptcheck.checkpoint.layout import BOX
from ckptcheck.phrase import few, ranges
from ckptcheck.values.compare import FIRST, read, repeated, same_bytes
from ckptcheck.values.roles import is_matrix, is_scale, starts_at_zero

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

BLOCKS = re.compile(r"(^|\.)(shared_(transf\w*|block|layer|attn|attention|head)|\w+_global)\.")
"""What is one block used in several layers (Zamba2), or starts as a copy of its neighbour by design (Longformer)."""
SHARING = ("num_hidden_groups", "num_mem_blocks")
"""Settings of models in which layers share weights: ALBERT, Zamba2."""
KV_SHARING = ("num_kv_shared_layers", "cla_share_factor")
"""Settings of models in which layers share keys and values: Gemma 3n, Hunyuan."""
KV = re.compile(r"(^|[._])(k|v|kv)_proj\.")
_EQUAL_LAYERS: WeakKeyDictionary[Checkpoint, dict[int, int]] = WeakKeyDictionary()
Fingerprint = tuple[tuple[str, str, tuple[int, ...], float], ...]
"""Name within the unit, dtype, shape and largest magnitude of each of its matrices."""


@dataclass(frozen=True)
class Unit:
    """A matrix of a layer, or an expert: what is compared at once. names: name within it → tensor; a matrix has one, ``""``."""

    layer: int
    role: str
    names: dict[str, str]


@dataclass(frozen=True)
class Copy:
    """A unit that holds the bytes of `twin`, which comes before it."""

    unit: Unit
    twin: Unit


def equal_layers(ckpt: Checkpoint) -> dict[int, int]:
    """Return layer → the first layer that holds the same bytes in all matrices, those of its first experts included.

    Raises Skip where values are not read, OSError where reading fails.
    """
    if ckpt not in _EQUAL_LAYERS:  # two rules ask
        _EQUAL_LAYERS[ckpt] = _equal_layers(ckpt)
    return _EQUAL_LAYERS[ckpt]


def _equal_layers(ckpt: Checkpoint) -> dict[int, int]:
    layers: list[tuple[int, dict[str, str]]] = []
    for layer in sorted(ckpt.anatomy.layers):
        names: dict[str, str] = {}
        groups: set[str] = set()
        for unit in _units(ckpt, layer):
            group = unit.role.rpartition(".")[0]
            if "" in unit.names:
                names[unit.role] = unit.names[""]
            elif group not in groups:
                groups.add(group)
                names |= {f"{group}.{part}": name for part, name in unit.names.items()}
        if names:
            layers.append((layer, names))
    same = repeated(
        layers,
        lambda unit: _fingerprint(ckpt, unit[1]),
        lambda one, other: all(same_bytes(ckpt, name, other[1][role]) for role, name in one[1].items()),
    )
    return {layer: first for (layer, _), (first, _) in same}


def equal_matrices(ckpt: Checkpoint) -> list[Copy]:
    """Return the matrices that hold the bytes of an earlier one, and the experts that hold those of another layer's.

    Left out are layers that are copies as a whole, and models in which layers share weights by their config. Errors as
    `equal_layers`.
    """
    if _declares(ckpt, SHARING):
        return []
    kv_shared = _declares(ckpt, KV_SHARING)
    copied = equal_layers(ckpt)
    alike: dict[Fingerprint, list[Unit]] = {}
    for layer in sorted(ckpt.anatomy.layers.keys() - copied.keys()):
        for unit in _units(ckpt, layer):
            if not (BLOCKS.search(unit.role) or (kv_shared and KV.search(unit.role))):
                alike.setdefault(_fingerprint(ckpt, unit.names), []).append(unit)
    found = []
    for units in alike.values():
        learned = [unit for unit in units if _is_learned(ckpt, unit)] if len(units) > 1 else []
        found += [
            Copy(unit, twin)
            for unit, twin in repeated(
                learned,
                lambda unit: _begin(ckpt, unit),
                lambda unit, twin: _may_not_equal(unit, twin) and _same(ckpt, unit, twin),
            )
        ]
    return found


def _begin(ckpt: Checkpoint, unit: Unit) -> bytes:
    return read(ckpt, next(iter(unit.names.values())), 0, FIRST)


def _is_learned(ckpt: Checkpoint, unit: Unit) -> bool:
    """Whether it is no identity, nor pruned: nothing is copied where nothing was learned."""
    begin = _begin(ckpt, unit)
    return begin.count(0) * 4 <= 3 * len(begin)


def _declares(ckpt: Checkpoint, settings: tuple[str, ...]) -> bool:
    return ckpt.config is not None and any((ckpt.config.integer(name) or 0) > 0 for name in settings)


def _units(ckpt: Checkpoint, layer: int) -> Iterator[Unit]:
    """Yield the matrices of a layer, and its experts, as far as they can be judged."""
    stack = ckpt.anatomy.stack
    assert stack is not None
    for role in sorted(ckpt.anatomy.layers[layer]):
        if "{}" not in role and _is_judged(ckpt, name := stack.name(layer, role)):
            yield Unit(layer, role, {"": name})
    for group, parts in sorted(stack.groups.get(layer, {}).items()):
        whole = [part for part in sorted(parts) if "{}" not in part]
        for member in sorted(set().union(*parts.values())):
            role = f"{group}.{member}"
            names = {part: stack.name(layer, f"{role}.{part}") for part in whole if member in parts[part]}
            judged = {part: name for part, name in names.items() if _is_judged(ckpt, name)}
            if judged:
                yield Unit(layer, role, judged)


def _is_judged(ckpt: Checkpoint, name: str) -> bool:
    stats = ckpt.values.tensors.get(name)
    return (
        stats is not None
        and name in ckpt.holders
        and name.endswith(("weight", "proj"))
        and is_matrix(stats)
        and not (stats.constant or stats.zero)
        and not (is_scale(name) or starts_at_zero(name))
    )


def _fingerprint(ckpt: Checkpoint, names: dict[str, str]) -> Fingerprint:
    seen = {part: ckpt.values.tensors[name] for part, name in names.items()}
    return tuple((part, stats.dtype, stats.shape, stats.absmax) for part, stats in seen.items())


def _may_not_equal(unit: Unit, twin: Unit) -> bool:
    """Whether nobody else says it: parts of one weight of Megatron are MEG028's, the experts of one layer VAL009's."""
    return unit.layer != twin.layer or ("" in unit.names and BOX.sub("", unit.role) != BOX.sub("", twin.role))


def _same(ckpt: Checkpoint, unit: Unit, twin: Unit) -> bool:
    return all(same_bytes(ckpt, name, twin.names[part]) for part, name in unit.names.items())


def matched(pairs: Iterable[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Join copies and originals that go together: those at one distance, and distances with the same originals.

    >>> matched([(2, 0), (3, 1), (4, 0), (5, 1)])
    [([2, 3, 4, 5], [0, 1])]
    >>> matched([(5, 4), (9, 2)])
    [([5], [4]), ([9], [2])]
    """
    distances: dict[int, list[tuple[int, int]]] = {}
    for copy, original in sorted(pairs):
        distances.setdefault(copy - original, []).append((copy, original))
    found: dict[tuple[int, ...], list[int]] = {}
    for together in distances.values():
        found.setdefault(tuple(original for _, original in together), []).extend(copy for copy, _ in together)
    return [(sorted(copies), list(originals)) for originals, copies in found.items()]


def layers(numbers: list[int]) -> str:
    """Write layers: ``layer 3``, ``layers 3-5``."""
    return f"layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def sentences(copies: Iterable[Copy]) -> list[str]:
    """Say what is a copy of what, together what happened to several layers alike."""
    inside: dict[tuple[str, str], list[int]] = {}
    across: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for copy in copies:
        unit, twin = copy.unit, copy.twin
        if unit.layer == twin.layer:
            inside.setdefault((unit.role, twin.role), []).append(unit.layer)
        else:
            across.setdefault((unit.layer, twin.layer), []).append((unit.role, twin.role))
    found = [f"in {layers(numbers)} {role} is {twin} again" for (role, twin), numbers in inside.items()]
    alike: dict[tuple[tuple[str, str], ...], list[tuple[int, int]]] = {}
    for pair, roles in across.items():
        alike.setdefault(tuple(roles), []).append(pair)
    for both, pairs in alike.items():
        own, theirs = [role for role, _ in both], [twin for _, twin in both]
        for numbers, originals in matched(pairs):
            verb, that = ("are", "those") if len(own) > 1 else ("is", "that")
            there = that if own == theirs else few(theirs)
            found.append(f"{few(own)} of {layers(numbers)} {verb} {there} of {layers(originals)} again")
    return found
