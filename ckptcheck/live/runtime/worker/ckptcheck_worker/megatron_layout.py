"""Converts between Megatron weights and Hugging Face tensors, and shards them over tensor-parallel ranks; imports no Megatron.

The layouts have the names of ckptcheck/compare/bridge/splitters.py, whose tables the client sends as JSON. Sources: attention.py
`get_query_key_value_tensors` of megatron-core 0.16 (per group: queries, key, value), mlp.py (gate above up; each rank
holds its rows of the gate above its rows of up).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LAYOUTS = ("whole", "glu", "qkv")


def to_megatron(layout: str, parts: Sequence[Any], groups: int) -> Any:
    """Build Megatron's unsharded tensor from the Hugging Face ones: q [heads × d, …], k and v [groups × d, …], or gate and up."""
    if layout == "whole":
        return parts[0]
    if layout == "glu":
        return torch.cat(tuple(parts))
    rest = parts[0].shape[1:]
    size = parts[1].shape[0] // groups
    grouped = [part.reshape(groups, part.shape[0] // groups // size, size, *rest) for part in parts]
    return torch.cat(grouped, 1).reshape(-1, *rest)


def to_hugging_face(layout: str, whole: Any, groups: int, size: int) -> list[Any]:
    """Undo `to_megatron`. size: of a head. The results are contiguous copies, except for the layout "whole"."""
    if layout == "whole":
        return [whole.contiguous()]
    if layout == "glu":
        return [half.clone() for half in whole.chunk(2)]
    rest = whole.shape[1:]
    grouped = whole.reshape(groups, -1, size, *rest)
    queries = grouped.shape[1] - 2
    return [part.reshape(-1, *rest).clone() for part in grouped.split([queries, 1, 1], 1)]


def shard(whole: Any, layout: str, axis: int | None, part: int, parts: int) -> Any:
    """Return the shard of one tensor-parallel rank. axis: None if every rank holds the whole tensor."""
    if axis is None or parts == 1:
        return whole
    if layout == "glu":
        return torch.cat([half.chunk(parts)[part] for half in whole.chunk(2)])
    return whole.chunk(parts, axis)[part].contiguous()


def unshard(shards: Sequence[Any], layout: str, axis: int | None) -> Any:
    """Undo `shard`, from the shards of all ranks."""
    if axis is None or len(shards) == 1:
        return shards[0]
    if layout == "glu":
        halves = [own.chunk(2) for own in shards]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    return torch.cat(tuple(shards), axis)


def pad_rows(whole: Any, rows: int) -> Any:
    """Pad with rows of zeros: Megatron's vocabulary is a multiple of the number of tensor-parallel ranks."""
    missing = rows - whole.shape[0]
    return torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole
