"""How a Megatron weight is made of Hugging Face tensors, and how tensor-parallel ranks share it. Tensors only, no Megatron.

Layouts have the names of ckptcheck/bridge/layouts.py, whose tables come here as JSON. Sources: attention.py
`get_query_key_value_tensors` of megatron-core 0.16 (per group: queries, key, value), mlp.py (gate above up; each rank
holds its rows of the gate above its rows of up).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

LAYOUTS = ("whole", "glu", "qkv")


def assemble(layout: str, parts: Sequence[Any], groups: int) -> Any:
    """Make Megatron's whole tensor of the Hugging Face ones, q [heads × d, …], k and v [groups × d, …] or gate and up."""
    if layout == "whole":
        return parts[0]
    if layout == "glu":
        return torch.cat(tuple(parts))
    rest = parts[0].shape[1:]
    size = parts[1].shape[0] // groups
    grouped = [part.reshape(groups, part.shape[0] // groups // size, size, *rest) for part in parts]
    return torch.cat(grouped, 1).reshape(-1, *rest)


def take_apart(layout: str, whole: Any, groups: int, size: int) -> list[Any]:
    """Undo `assemble`; size: of a head. What comes back is contiguous and shares no memory unless it is the whole."""
    if layout == "whole":
        return [whole.contiguous()]
    if layout == "glu":
        return [half.clone() for half in whole.chunk(2)]
    rest = whole.shape[1:]
    grouped = whole.reshape(groups, -1, size, *rest)
    queries = grouped.shape[1] - 2
    return [part.reshape(-1, *rest).clone() for part in grouped.split([queries, 1, 1], 1)]


def shard(whole: Any, layout: str, axis: int | None, part: int, parts: int) -> Any:
    """Return what one of the tensor-parallel ranks holds. axis: None where all hold the whole."""
    if axis is None or parts == 1:
        return whole
    if layout == "glu":
        return torch.cat([half.chunk(parts)[part] for half in whole.chunk(2)])
    return whole.chunk(parts, axis)[part].contiguous()


def unshard(shards: Sequence[Any], layout: str, axis: int | None) -> Any:
    """Undo `shard`, from what all ranks hold."""
    if axis is None or len(shards) == 1:
        return shards[0]
    if layout == "glu":
        halves = [held.chunk(2) for held in shards]
        return torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    return torch.cat(tuple(shards), axis)


def padded(whole: Any, rows: int) -> Any:
    """Add rows of zeros: Megatron's vocabulary is a multiple of the number of tensor-parallel ranks."""
    missing = rows - whole.shape[0]
    return torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole
