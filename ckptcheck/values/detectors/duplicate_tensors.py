"""Finds layers, matrices and experts that hold the bytes of others.

Two tensors are compared only if their dtypes, shapes and largest magnitudes are equal: first their first bytes, then all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import BOX
from ckptcheck.linter.evidence import remembered
from ckptcheck.text.formatting import format_layers, join_truncated
from ckptcheck.values.detectors.byte_compare import (
    PREFIX_BYTES,
    are_equal_tensors,
    iter_repeats,
    map_pieces,
    read_tensor_bytes,
)
from ckptcheck.values.detectors.roles import group_by_kind, is_matrix, is_scale, starts_at_zero

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SHARED_BLOCK = re.compile(r"(^|\.)(shared_(transf\w*|block|layer|attn|attention|head)|\w+_global)\.")
"""Names of blocks that several layers share (Zamba2), or that start as a copy of a neighbour by design (Longformer)."""
LAYER_SHARING = ("num_hidden_groups", "num_mem_blocks")
"""Settings of models in which layers share weights: ALBERT, Zamba2."""
KV_SHARING = ("num_kv_shared_layers", "cla_share_factor")
"""Settings of models in which layers share keys and values: Gemma 3n, Hunyuan."""
KV_PROJECTION = re.compile(r"(^|[._])(k|v|kv)_proj\.")
Fingerprint = tuple[tuple[str, str, tuple[int, ...], float], ...]
"""Name within the unit, dtype, shape and largest magnitude of each of its matrices."""


class CompareUnit(msgspec.Struct, frozen=True):
    """A matrix of a layer, or an expert: it is compared as a whole."""

    layer: int
    role: str
    """Name within the layer."""
    names: dict[str, str]
    """Name within the unit → tensor. A matrix has one name, ``""``."""


class TensorCopy(msgspec.Struct, frozen=True):
    """A unit that holds the same bytes as an earlier one."""

    unit: CompareUnit
    original: CompareUnit
    """The earlier unit."""


@remembered
def find_equal_layers(ckpt: Checkpoint) -> dict[int, int]:
    """Return layer → the first layer whose matrices all hold the same bytes; of numbered experts the first one is compared.

    Raises Skip if values are not read, OSError if reading fails.
    """
    layers: list[tuple[int, dict[str, str]]] = []
    for layer in sorted(ckpt.components.layers):
        names: dict[str, str] = {}
        groups: set[str] = set()
        for unit in _list_units(ckpt, layer):
            group = unit.role.rpartition(".")[0]
            if "" in unit.names:
                names[unit.role] = unit.names[""]
            elif group not in groups:
                groups.add(group)
                names |= {f"{group}.{part}": name for part, name in unit.names.items()}
        if names:
            layers.append((layer, names))
    repeats = iter_repeats(
        layers,
        [_fingerprint(ckpt, names) for _, names in layers],
        lambda one, other: all(are_equal_tensors(ckpt, name, other[1][role]) for role, name in one[1].items()),
    )
    return {layer: first for (layer, _), (first, _) in repeats}


def find_equal_matrices(ckpt: Checkpoint) -> list[TensorCopy]:
    """Return the matrices that repeat an earlier one, and the experts that repeat an expert of another layer.

    Layers that are copies as a whole, and models whose config says that layers share weights, do not count. Raises as
    `find_equal_layers`.
    """
    if _declares_any(ckpt, LAYER_SHARING):
        return []
    kv_shared = _declares_any(ckpt, KV_SHARING)
    copied_layers = find_equal_layers(ckpt)
    units_by_fingerprint: dict[Fingerprint, list[CompareUnit]] = {}
    for layer in sorted(ckpt.components.layers.keys() - copied_layers.keys()):
        for unit in _list_units(ckpt, layer):
            if not (SHARED_BLOCK.search(unit.role) or (kv_shared and KV_PROJECTION.search(unit.role))):
                units_by_fingerprint.setdefault(_fingerprint(ckpt, unit.names), []).append(unit)
    copies = []
    for units in units_by_fingerprint.values():
        several = units if len(units) > 1 else []
        are_learned = map_pieces(ckpt, partial(_is_learned, ckpt), several)
        learned_units = [unit for unit, is_learned in zip(several, are_learned, strict=True) if is_learned]
        copies += [
            TensorCopy(unit, original)
            for unit, original in iter_repeats(
                learned_units,
                map_pieces(ckpt, partial(_read_prefix, ckpt), learned_units),
                lambda unit, original: _is_reported_here(unit, original) and _are_equal_units(ckpt, unit, original),
            )
        ]
    return copies


def _read_prefix(ckpt: Checkpoint, unit: CompareUnit) -> bytes:
    return read_tensor_bytes(ckpt, next(iter(unit.names.values())), 0, PREFIX_BYTES)


def _is_learned(ckpt: Checkpoint, unit: CompareUnit) -> bool:
    """Whether a unit begins with learned numbers. The zeros of an identity or a pruned matrix are equal without being a copy."""
    begin = _read_prefix(ckpt, unit)
    return begin.count(0) * 4 <= 3 * len(begin)


def _declares_any(ckpt: Checkpoint, settings: tuple[str, ...]) -> bool:
    return ckpt.config is not None and any((ckpt.config.integer(name) or 0) > 0 for name in settings)


@remembered
def _list_units(ckpt: Checkpoint, layer: int) -> list[CompareUnit]:
    return list(_iter_units(ckpt, layer))


def _iter_units(ckpt: Checkpoint, layer: int) -> Iterator[CompareUnit]:
    """Yield the matrices and experts of a layer that can be judged."""
    stack = ckpt.components.stack
    assert stack is not None
    can_judge = _list_judged(ckpt)
    for role in sorted(ckpt.components.layers[layer]):
        if "{}" not in role and (name := stack.full_name(layer, role)) in can_judge:
            yield CompareUnit(layer, role, {"": name})
    for group, parts in sorted(stack.groups.get(layer, {}).items()):
        plain_parts = [(part, parts[part]) for part in sorted(parts) if "{}" not in part]
        for member in sorted(set().union(*parts.values())):
            judged = {
                part: name for part, members in plain_parts if (name := members.get(member, "")) and name in can_judge
            }
            if judged:
                yield CompareUnit(layer, f"{group}.{member}", judged)


@remembered
def _list_judged(ckpt: Checkpoint) -> frozenset[str]:
    return frozenset(
        stats.name
        for kind, members in group_by_kind(ckpt).items()
        if kind.endswith(("weight", "proj")) and not (is_scale(kind) or starts_at_zero(kind))
        for stats in members
        if is_matrix(stats) and not (stats.constant or stats.zero)
    )


def _fingerprint(ckpt: Checkpoint, names: dict[str, str]) -> Fingerprint:
    stats_by_part = {part: ckpt.values.tensors[name] for part, name in names.items()}
    return tuple((part, stats.dtype, stats.shape, stats.absmax) for part, stats in stats_by_part.items())


def _is_reported_here(unit: CompareUnit, original: CompareUnit) -> bool:
    """Whether no other rule reports the copy: MEG028 compares the parts of a Megatron weight, VAL009 the experts of a layer."""
    return unit.layer != original.layer or ("" in unit.names and BOX.sub("", unit.role) != BOX.sub("", original.role))


def _are_equal_units(ckpt: Checkpoint, unit: CompareUnit, original: CompareUnit) -> bool:
    return all(are_equal_tensors(ckpt, name, original.names[part]) for part, name in unit.names.items())


def group_copies(pairs: Iterable[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Group (copy, original) pairs by distance, and then by originals.

    >>> group_copies([(2, 0), (3, 1), (4, 0), (5, 1)])
    [([2, 3, 4, 5], [0, 1])]
    >>> group_copies([(5, 4), (9, 2)])
    [([5], [4]), ([9], [2])]
    """
    distances: dict[int, list[tuple[int, int]]] = {}
    for copy, original in sorted(pairs):
        distances.setdefault(copy - original, []).append((copy, original))
    copies_by_originals: dict[tuple[int, ...], list[int]] = {}
    for together in distances.values():
        copies_by_originals.setdefault(tuple(original for _, original in together), []).extend(
            copy for copy, _ in together
        )
    return [(sorted(copies), list(originals)) for originals, copies in copies_by_originals.items()]


def describe_copies(copies: Iterable[TensorCopy]) -> list[str]:
    """Write which unit repeats which, one sentence for all layers with the same repetition."""
    inside: dict[tuple[str, str], list[int]] = {}
    across: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for copy in copies:
        unit, original = copy.unit, copy.original
        if unit.layer == original.layer:
            inside.setdefault((unit.role, original.role), []).append(unit.layer)
        else:
            across.setdefault((unit.layer, original.layer), []).append((unit.role, original.role))
    sentences = [f"in {format_layers(numbers)} {role} repeats {other}" for (role, other), numbers in inside.items()]
    layers_by_roles: dict[tuple[tuple[str, str], ...], list[tuple[int, int]]] = {}
    for layers, roles in across.items():
        layers_by_roles.setdefault(tuple(roles), []).append(layers)
    for role_pairs, layer_pairs in layers_by_roles.items():
        copied, original_roles = [role for role, _ in role_pairs], [other for _, other in role_pairs]
        for numbers, originals in group_copies(layer_pairs):
            verb, that = ("repeat", "those") if len(copied) > 1 else ("repeats", "that")
            object_ = that if copied == original_roles else join_truncated(original_roles)
            sentences.append(
                f"{join_truncated(copied)} of {format_layers(numbers)} {verb} {object_} of {format_layers(originals)}"
            )
    return sentences
