"""Compares the layers of a stack with each other and finds layers that lack tensors of their siblings.

It works for unknown architectures too, because their complete layers show what a layer has. The lists in the config give the
kinds of layers; where it has none, a gap that repeats at regular distances reveals a kind.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from itertools import pairwise
from typing import Any

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.checkpoint.tensor import Tensor

Names = frozenset[str]
MINORITY = 3
"""Several layers that lack the same tensors are incomplete if this many times as many layers have them; else they are a kind."""
CLEAR = 3
"""A layer without a part that many architectures give to some layers only is incomplete if this many other layers have it."""
BEYOND = 4
"""A list with up to this many entries more than there are layers also describes layers of multi-token prediction."""
MOST_SHAPES = 500
"""Most different layers that are compared: more show no regularity, and comparing each pair would take too long."""
SPARSE = re.compile(r"index|compress|sink|lora|adapter|tid2eid|engram")
"""Names of parts that some architectures give to some kinds of layers only: attention sinks, indexers, compressors."""
OPTIONAL = re.compile(SPARSE.pattern + r"|bias|norm|scale|embed|hash|(?<!mlp\.)gate(?!_?(up_?)?proj)")
"""Names of parts that several sound layers may lack: the parts above, norms, biases, gates."""
SHARED = re.compile(r"(^|[._])(k|v|kv|key|value|k_norm|v_norm)(_?proj|_?norm)?(\.|$)")
"""Names of keys and values, which the last layers of a model may share with earlier ones."""


def layer_kinds(settings: Mapping[str, Any], depth: int) -> dict[int, str]:
    """Map each layer to its kind: its entries in the config's per-layer lists, and its membership in lists of layer numbers.

    A string with one letter a layer (``hybrid_override_pattern``) counts as a list; lists one level down count too.
    """
    kinds: dict[int, list[str]] = {layer: [] for layer in range(depth)}
    for name, value in _iter_lists(settings):
        numbers = bool(value) and all(type(item) is int and 0 <= item < depth for item in value)
        of_layers = len(value) == depth or (depth > BEYOND and 0 <= len(value) - depth <= BEYOND)
        if of_layers or numbers:
            for layer, entries in kinds.items():
                entry = value[layer] if of_layers else layer in value
                entries.append(f"{name}={json.dumps(entry, sort_keys=True)}")
    return {layer: ";".join(entries) for layer, entries in kinds.items()}


def _iter_lists(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[Any] | str]]:
    """Yield the lists of the settings and of the objects in them, by name, and strings that look like a pattern."""
    for name, value in sorted(settings.items()):
        if isinstance(value, list) or (isinstance(value, str) and "pattern" in name):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in sorted(value.items()) if isinstance(inner, list))


def is_regular(layers: Collection[int], depth: int) -> bool:
    """Whether several of `depth` layers, or all the others, lie at equal distances: every fourth, all but every sixth.

    Two layers show no distance unless there are eight.

    >>> is_regular([3, 7, 11], 12), is_regular([0, 1, 2, 4, 5, 6], 8), is_regular([3, 4, 9], 12), is_regular([0, 3], 4)
    (True, True, False, False)
    """
    for some in (sorted(layers), sorted(set(range(depth)) - set(layers))):
        steps = {after - before for before, after in pairwise(some)}
        if len(steps) != 1 or (len(some) < 3 and depth < 8):
            continue
        step = min(steps)
        if step > 1 and some[0] <= step and some[-1] + step >= depth:
            return True
    return False


def find_incomplete_layers(
    layers: Mapping[int, Names], kind: Mapping[int, str], *, alike: bool = True
) -> dict[int, tuple[Names, list[int]]]:
    """Map each incomplete layer to the names it lacks and to the layers that have them.

    A layer is compared with the layers of its kind. If it has fewer than two siblings, or the kinds are unknown (`alike` is
    False), it is compared with all layers, and only a partly missing component counts: a layer of another kind may lack a
    whole component.
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
            if fuller is None and numbers[names] == 1:
                fuller = _renamed(names, numbers)
            if fuller is None and len(siblings) < 3 and all_shapes[names] == 1:
                # layers of another kind may have other modules, but not the same modules with one name misspelt
                compared, fuller = layers, _renamed(names, all_shapes, modules=False)
            if fuller is not None and not _is_pattern(fuller - names, compared):
                incomplete[layer] = (fuller - names, [other for other, theirs in compared.items() if theirs == fuller])
    return incomplete


def _is_pattern(missing: Names, compared: Mapping[int, Names]) -> bool:
    """Whether the layers that lack all these names are a kind of their own, by what they lack or where they stand."""
    lacking = [place for place, layer in enumerate(sorted(compared)) if not compared[layer] & missing]
    if len(lacking) < 2:
        return False
    if all(OPTIONAL.search(name) for name in missing) or is_regular(lacking, len(compared)):
        return True
    return all(SHARED.search(name) for name in missing) and lacking == list(range(lacking[0], len(compared)))


def _fuller(names: Names, numbers: Counter[Names], *, torn: bool) -> Names | None:
    """Return the names of siblings that have all of `names` and more: at least two, and more than the layers like this one.

    Several layers that all lack one whole component are a kind of their own, not incomplete.
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


def _renamed(names: Names, numbers: Counter[Names], *, modules: bool = True) -> Names | None:
    """Return the names of at least two siblings that have another name for one module, or for one tensor of a module.

    The two names of a module differ in one part, and the module has the same tensors.
    modules: whether to look for renamed modules, not only tensors.
    """
    for other, number in numbers.most_common():
        lacked, added = _one_module(other - names), _one_module(names - other)
        if (
            number >= 2
            and lacked is not None
            and added is not None
            and lacked[0] == added[0]
            and _is_misspelt(lacked[1], added[1])
        ):
            return other
        if modules and number >= 2 and lacked is not None and added is not None and lacked[1] == added[1]:
            one, two = lacked[0].split("."), added[0].split(".")
            if len(one) == len(two) and sum(left != right for left, right in zip(one, two, strict=True)) == 1:
                return other
    return None


def _is_misspelt(lacked: Names, added: Names) -> bool:
    """Whether the one tensor that a module has in place of another can only be that tensor under a wrong name."""
    if len(lacked) != 1 or len(added) != 1:
        return False
    (right,), (wrong,) = lacked, added
    # A module may have another bias by design, but never another weight.
    return right == "weight" or wrong.casefold().startswith(right.casefold())


def _one_module(names: Names) -> tuple[str, Names] | None:
    """Return the module of all these tensors, and their names within it; None if they belong to several modules."""
    modules = {name.rpartition(".")[0] for name in names}
    if len(modules) != 1:
        return None
    return modules.pop(), frozenset(name.rpartition(".")[2] for name in names)


class UnevenShape(msgspec.Struct, frozen=True):
    """A tensor of one layer, or of one expert, whose shape differs from all its siblings'."""

    layer: int
    name: str
    """Its name within the layer."""
    shape: tuple[int, ...]
    usual: tuple[int, ...]
    """The shape that all siblings have."""


def find_uneven_shapes(
    stack: Stack,
    kind: Mapping[int, str],
    tensors: Mapping[str, Tensor],
    forms: Mapping[str, Set[tuple[str, tuple[int, ...]]]],
) -> Iterator[UnevenShape]:
    """Yield the tensors whose shape differs from all of at least three siblings.

    forms: name with {} for each number → the dtypes and shapes of its tensors.

    Siblings are the experts of a layer, and the layers of a kind. Packed tensors are left out: a recipe may give one layer more
    bits. If two or more differ, the architecture may give each its own width.
    """
    shapes: dict[tuple[str, str], dict[int, tuple[int, ...]]] = {}
    for layer, names in stack.layers.items():
        for name in names:
            if "{}" not in name:
                tensor = tensors[stack.full_name(layer, name)]
                if tensor.is_plain:
                    shapes.setdefault((kind.get(layer, ""), name), {})[layer] = tensor.shape
        for group, parts in stack.groups.get(layer, {}).items():
            for part, members in parts.items():
                template = f"{stack.prefix}.{{}}.{group}.{{}}.{part}"
                if "{}" in part or len(forms.get(template, ())) == 1:
                    continue
                found = {member: tensor.shape for member, name in members.items() if (tensor := tensors[name]).is_plain}
                if (odd := _find_odd(found)) is not None:
                    yield UnevenShape(layer, f"{group}.{odd[0]}.{part}", found[odd[0]], odd[1])
    for (_, name), found in shapes.items():
        if (odd := _find_odd(found)) is not None:
            yield UnevenShape(odd[0], name, found[odd[0]], odd[1])


def _find_odd(shapes: Mapping[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]] | None:
    """Return, of at least four, the one whose shape differs from all others, and the others' shape."""
    numbers = Counter(shapes.values())
    if len(shapes) < 4 or len(numbers) != 2:
        return None
    (usual, _), (other, number) = numbers.most_common()
    return (next(at for at, shape in shapes.items() if shape == other), usual) if number == 1 else None


def _torn(names: Names, other: Names) -> bool:
    """Whether `names` lacks part of a component, rather than a whole component."""
    return bool({name.partition(".")[0] for name in other - names} & {name.partition(".")[0] for name in names})
