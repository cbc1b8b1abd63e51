"""Experts of one layer that hold the bytes of another, and rows of routers that are another's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.experts import fused_experts, numbered_experts
from ckptcheck.phrase import ranges
from ckptcheck.values.compare import FIRST, equal_slices, read, repeated, same_bytes
from ckptcheck.values.duplicates import matched
from ckptcheck.values.roles import is_matrix, is_packed, is_router

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

FEW = 4
"""Experts with equal statistics that are compared on the Hub, where each costs a request: in FP8 all of a layer have them."""
Copies = dict[int, list[int]]
"""Expert → the later ones that are the same."""


@dataclass(frozen=True)
class Repeated:
    """Experts of a layer that are others again. key: the first of them, or the tensor or router that holds them all."""

    layer: int
    key: str
    copies: Copies


def stacked(ckpt: Checkpoint) -> Iterator[str]:
    """Yield the tensors that hold all experts of a layer: numbers, or their packed form (gpt-oss' ``gate_up_proj_blocks``)."""
    yield from (name for name, _ in fused_experts(ckpt.anatomy))
    stack = ckpt.anatomy.stack
    for layer, names in ckpt.anatomy.layers.items() if stack is not None else ():
        for name in sorted(names):
            full = stack.name(layer, name) if stack is not None else ""
            packed = name.endswith(("proj_blocks", "proj_packed")) and full in ckpt.tensors
            if packed and len(ckpt.tensors[full].shape) >= 3:
                yield full


def numbered_copies(ckpt: Checkpoint) -> Iterator[Repeated]:
    """Yield the layers whose experts, each with tensors of its own, repeat. Raises OSError where reading fails.

    Compared are those whose statistics agree; first their beginnings, then all bytes.
    """
    stack, values = ckpt.anatomy.stack, ckpt.values.tensors
    assert stack is not None
    for layer, group, members, parts in numbered_experts(ckpt.anatomy):
        alike: dict[tuple[tuple[str, str, float], ...], list[tuple[int, list[str]]]] = {}
        for expert in sorted(members):
            named = {part: stack.name(layer, f"{group}.{expert}.{part}") for part in sorted(parts)}
            found = [(part, values[name]) for part, name in named.items() if name in values and name in ckpt.holders]
            judged = [
                (part, stats) for part, stats in found if not stats.constant and (is_matrix(stats) or is_packed(stats))
            ]
            if judged:
                marks = tuple((part, stats.dtype, stats.absmax) for part, stats in judged)
                alike.setdefault(marks, []).append((expert, [stats.name for _, stats in judged]))
        copies: Copies = {}
        for experts in alike.values():
            if len(experts) > 1 and (ckpt.source.local is not None or len(experts) <= FEW):
                for (expert, _), (twin, _) in repeated(
                    experts,
                    lambda unit: read(ckpt, unit[1][0], 0, FIRST),
                    lambda one, other: _same(ckpt, one[1], other[1]),
                ):
                    copies.setdefault(twin, []).append(expert)
        if copies:
            first = min(copy for found in copies.values() for copy in found)
            yield Repeated(layer, stack.name(layer, f"{group}.{first}"), copies)


def _same(ckpt: Checkpoint, names: list[str], others: list[str]) -> bool:
    return all(same_bytes(ckpt, name, other) for name, other in zip(names, others, strict=True))


def stacked_copies(ckpt: Checkpoint) -> Iterator[Repeated]:
    """Yield the tensors with all experts of a layer in which some repeat. Nothing on the Hub. Raises OSError."""
    if ckpt.source.local is None:
        return
    for name in stacked(ckpt):
        stats = ckpt.values.tensors.get(name)
        judged = stats and stats.shape[0] > 1 and not stats.constant and (is_matrix(stats) or is_packed(stats))
        if judged and (copies := equal_slices(ckpt, name)):
            yield Repeated(_layer(ckpt, name), name, copies)


def routers(ckpt: Checkpoint) -> Iterator[str]:
    """Yield the routers in the layers that hold more than one number."""
    inside = ckpt.anatomy.stack.prefix + "." if ckpt.anatomy.stack is not None else None
    for name, stats in ckpt.values.tensors.items():
        if (
            inside
            and name in ckpt.holders
            and name.startswith(inside)
            and not stats.constant
            and is_router(ckpt, stats)
        ):
            yield name


def router_copies(ckpt: Checkpoint) -> Iterator[Repeated]:
    """Yield the routers in which two experts have the same row. Nothing on the Hub. Raises OSError."""
    for name in routers(ckpt) if ckpt.source.local is not None else ():
        if copies := equal_slices(ckpt, name):
            yield Repeated(_layer(ckpt, name), name, copies)


def _layer(ckpt: Checkpoint, name: str) -> int:
    assert ckpt.anatomy.stack is not None
    return int(name.removeprefix(ckpt.anatomy.stack.prefix + ".").partition(".")[0])


def again(copies: Copies, whose: str = "expert") -> str:
    """Say which are others again.

    >>> again({0: [2], 1: [3]}), again({0: [1, 2]})
    ('experts 2-3 are experts 0-1 again', 'experts 1-2 are expert 0 again')
    """
    said = []
    for numbers, originals in matched((copy, first) for first, found in copies.items() for copy in found):
        many, more = (len(listed) > 1 for listed in (numbers, originals))
        said.append(
            f"{whose}{'s' if many else ''} {ranges(numbers)} {'are' if many else 'is'} "
            f"{whose}{'s' if more else ''} {ranges(originals)} again"
        )
    rest = f" and {len(said) - 3} more such" if len(said) > 3 else ""
    return f"{', '.join(said[:3])}{rest}"
