"""Finds heads of keys and values that repeat others of their layer, while the heads of other layers differ.

A model whose key-value heads were repeated, to serve them on more ranks, has copies in every layer. That is sound.
Copies in one layer only come from a conversion that wrote one head again and again. Only heads with equal first bytes
are compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.config import HEADS, HIDDEN
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import (
    PREFIX_BYTES,
    have_equal_bytes,
    is_cleared,
    map_pieces,
    read_tensor_bytes,
)
from ckptcheck.values.detectors.roles import KEYS, is_matrix
from ckptcheck.values.first_looks import ROWS, choose_grid

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_LAYERS = 4
"""Fewer layers do not show what is usual."""
MAX_SHARE = 1 / 4
"""Layers with copies are an exception up to this share of the layers."""


class RepeatedHead(msgspec.Struct, frozen=True):
    """Two heads of a projection that hold the same bytes."""

    name: str
    first: int
    second: int
    """The numbers of the equal heads, from 0."""
    heads: int
    layers: int
    """How many layers have the projection."""


def find_repeated_heads(ckpt: Checkpoint) -> list[RepeatedHead]:
    """Return the first two equal heads of each projection of keys or values, if only few layers have equal heads.

    Raises Skip if a file has shrunk, OSError if reading fails.
    """
    names_by_role, width = list_headed(ckpt)
    found = []
    for names in names_by_role.values():
        pairs = {
            name: pair
            for name, pair in zip(
                names, map_pieces(ckpt, lambda name: _find_pair(ckpt, name, width), names), strict=True
            )
            if pair is not None
        }
        if len(pairs) <= MAX_SHARE * len(names):
            found += [
                RepeatedHead(name, *pair, ckpt.tensors[name].shape[0] // width, len(names))
                for name, pair in pairs.items()
            ]
    return found


def list_headed(ckpt: Checkpoint) -> tuple[dict[str, list[str]], int]:
    """Return the projections of keys and of values that can be judged, by role, and the rows of a head."""
    config, stack = ckpt.config, ckpt.components.stack
    if config is None or stack is None:
        return {}, 0
    heads, hidden = config.integer(*HEADS), config.integer(*HIDDEN)
    width = config.integer("head_dim") or (hidden // heads if heads and hidden else 0)
    names_by_role: dict[str, list[str]] = {}
    for layer, roles in sorted(stack.layers.items()):
        for role in sorted(roles):
            if KEYS.search(role) and _has_heads(ckpt, name := stack.full_name(layer, role), width):
                names_by_role.setdefault(role, []).append(name)
    return {role: names for role, names in names_by_role.items() if len(names) >= MIN_LAYERS}, width


def _has_heads(ckpt: Checkpoint, name: str, width: int) -> bool:
    """Whether a tensor is a matrix of two heads or more."""
    stats = ckpt.values.tensors.get(name)
    return (
        stats is not None
        and name in ckpt.tensor_to_file
        and is_matrix(stats)
        and len(stats.shape) == 2
        and not (stats.constant or stats.zero)
        and width > 0
        and stats.shape[0] % width == 0
        and stats.shape[0] > width
    )


def _find_pair(ckpt: Checkpoint, name: str, width: int) -> tuple[int, int] | None:
    """Return the numbers of the first two heads that hold the same bytes."""
    tensor = ckpt.tensors[name]
    shares = len(choose_grid((tensor.shape[0], tensor.nbytes // tensor.shape[0])).rows)
    if shares % (tensor.shape[0] // width) == 0 and is_cleared(ckpt, name, ROWS):
        return None  # each head begins with a share of the rows, and these all differ
    return next(_iter_pairs(ckpt, name, width), None)


def _iter_pairs(ckpt: Checkpoint, name: str, width: int) -> Iterator[tuple[int, int]]:
    tensor = ckpt.tensors[name]
    heads = tensor.shape[0] // width
    size = tensor.nbytes // heads
    length = min(PREFIX_BYTES, size)
    prefixes = [read_tensor_bytes(ckpt, name, head * size, length) for head in range(heads)]
    if any(len(prefix) < length for prefix in prefixes):
        raise Skip(f"{ckpt.tensor_to_file[name]} shrank while it was being read")
    if len(set(prefixes)) == heads:
        return
    for first, second in combinations(range(heads), 2):
        # Heads of zeros were pruned, or are VAL005's.
        if (
            prefixes[first] == prefixes[second]
            and len(set(prefixes[first])) > 2
            and have_equal_bytes(ckpt, (name, first * size), (name, second * size), size)
        ):
            yield first, second
