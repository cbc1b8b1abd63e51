"""Finds experts of a layer that hold the bytes of another expert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.experts import fused_experts, iter_numbered_experts
from ckptcheck.text.formatting import format_ranges
from ckptcheck.values.detectors.byte_compare import (
    PREFIX_BYTES,
    are_equal_tensors,
    find_equal_slices,
    iter_repeats,
    map_pieces,
    read_tensor_bytes,
)
from ckptcheck.values.detectors.duplicate_tensors import group_copies
from ckptcheck.values.detectors.roles import is_matrix, is_packed

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_REMOTE_EXPERTS = 4
"""Experts with equal statistics that are compared on the Hub, where each costs a request. In FP8 all experts of a layer
have equal statistics."""
Copies = dict[int, list[int]]
"""Expert → the later experts that hold the same bytes."""


class RepeatedExperts(msgspec.Struct, frozen=True):
    """Experts of a layer that repeat other experts."""

    layer: int
    key: str
    """The first expert that repeats another, or the tensor that holds them all."""
    copies: Copies


def iter_stacked_experts(ckpt: Checkpoint) -> Iterator[str]:
    """Yield the tensors that hold all experts of a layer, as numbers or packed (``gate_up_proj_blocks`` of gpt-oss)."""
    yield from (name for name, _ in fused_experts(ckpt.components))
    stack = ckpt.components.stack
    for layer, names in ckpt.components.layers.items() if stack is not None else ():
        for name in sorted(names):
            full = stack.full_name(layer, name) if stack is not None else ""
            packed = name.endswith(("proj_blocks", "proj_packed")) and full in ckpt.tensors
            if packed and len(ckpt.tensors[full].shape) >= 3:
                yield full


def iter_repeated_numbered_experts(ckpt: Checkpoint) -> Iterator[RepeatedExperts]:
    """Yield the layers in which experts with tensors of their own repeat. Raises OSError if reading fails.

    It compares experts with equal statistics: their first bytes, then all bytes.
    """
    stack, values = ckpt.components.stack, ckpt.values.tensors
    assert stack is not None
    for layer, group, members, parts in iter_numbered_experts(ckpt.components):
        experts_by_stats: dict[tuple[tuple[str, str, float], ...], list[tuple[int, list[str]]]] = {}
        names_by_part = [(part, stack.groups[layer][group][part]) for part in sorted(parts) if "{}" not in part]
        for expert in sorted(members):
            judged_parts = [
                (part, stats)
                for part, names in names_by_part
                if (stats := values.get(names.get(expert, ""))) is not None
                and stats.name in ckpt.tensor_to_file
                and not stats.constant
                and (is_matrix(stats) or is_packed(stats))
            ]
            if judged_parts:
                fingerprint = tuple((part, stats.dtype, stats.absmax) for part, stats in judged_parts)
                experts_by_stats.setdefault(fingerprint, []).append((expert, [stats.name for _, stats in judged_parts]))
        copies: Copies = {}
        for experts in experts_by_stats.values():
            if len(experts) > 1 and (ckpt.can_sample or len(experts) <= MAX_REMOTE_EXPERTS):
                for (expert, _), (twin, _) in iter_repeats(
                    experts,
                    map_pieces(ckpt, lambda unit: read_tensor_bytes(ckpt, unit[1][0], 0, PREFIX_BYTES), experts),
                    lambda one, other: _are_equal_experts(ckpt, one[1], other[1]),
                ):
                    copies.setdefault(twin, []).append(expert)
        if copies:
            first = min(copy for later in copies.values() for copy in later)
            yield RepeatedExperts(layer, stack.full_name(layer, f"{group}.{first}"), copies)


def _are_equal_experts(ckpt: Checkpoint, names: list[str], others: list[str]) -> bool:
    return all(are_equal_tensors(ckpt, name, other) for name, other in zip(names, others, strict=True))


def iter_repeated_stacked_experts(ckpt: Checkpoint) -> Iterator[RepeatedExperts]:
    """Yield the tensors with all experts of a layer in which some repeat; none on the Hub. Raises OSError if reading fails."""
    if not ckpt.can_sample:
        return
    for name in iter_stacked_experts(ckpt):
        stats = ckpt.values.tensors.get(name)
        is_judged = stats and stats.shape[0] > 1 and not stats.constant and (is_matrix(stats) or is_packed(stats))
        if is_judged and (copies := find_equal_slices(ckpt, name)):
            yield RepeatedExperts(_layer_of(ckpt, name), name, copies)


def _layer_of(ckpt: Checkpoint, name: str) -> int:
    assert ckpt.components.stack is not None
    return int(name.removeprefix(ckpt.components.stack.prefix + ".").partition(".")[0])


def describe_repeats(copies: Copies) -> str:
    """Write which experts repeat which.

    >>> describe_repeats({0: [2], 1: [3]}), describe_repeats({0: [1, 2]})
    ('experts 2-3 repeat experts 0-1', 'experts 1-2 repeat expert 0')
    """
    sentences = []
    for numbers, originals in group_copies((copy, first) for first, later in copies.items() for copy in later):
        many, more = ("s" if len(listed) > 1 else "" for listed in (numbers, originals))
        sentences.append(
            f"expert{many} {format_ranges(numbers)} {'repeat' if many else 'repeats'} expert{more} {format_ranges(originals)}"
        )
    rest = f" and {len(sentences) - 3} more such" if len(sentences) > 3 else ""
    return f"{', '.join(sentences[:3])}{rest}"
