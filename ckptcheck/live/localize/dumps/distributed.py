"""Replaces DTensors by arrays: the part of the rank, or the total of a partial sum over all its ranks.

The parts of a shard stay as they are: shards.py joins them like the plain tensors of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ckptcheck.checkpoint.distributed_tensor import DistributedTensor
from ckptcheck.live.localize.dumps.rank import RankDump
from ckptcheck.text.formatting import count, join_truncated

REDUCTIONS = ("sum", "avg", "max", "min")
"""Reductions that make the whole of partial values."""


def resolve_distributed(dumps: Sequence[RankDump]) -> list[RankDump]:
    """Return the dumps with arrays only.

    A partial value is the sum, mean, maximum or minimum over its ranks; if the dump lacks one of them, the result has
    no value there, and the rank says so.
    """
    resolved = []
    for dump in dumps:
        tensors, incomplete = dict(dump.tensors), []
        sizes = set() if dump.tensor_parallel_size is None else {dump.tensor_parallel_size}
        for name, tensor in dump.tensors.items():
            if not isinstance(tensor, DistributedTensor):
                continue
            whole = _reduce(name, tensor, dumps)
            if whole is None:
                del tensors[name]
                incomplete.append(name)
            else:
                tensors[name] = whole
                sizes |= {tensor.column_shards} - {1}
        clauses = dump.left_out
        if incomplete:
            parts = f"{count(len(incomplete), 'partial sum')} of {dump.name}, whose other ranks are not in the dump"
            clauses += (f"{parts}: {join_truncated(incomplete)}",)
        size = sizes.pop() if len(sizes) == 1 else dump.tensor_parallel_size
        resolved.append(replace(dump, tensors=tensors, tensor_parallel_size=size, left_out=clauses))
    return resolved


def _reduce(name: str, tensor: DistributedTensor, dumps: Sequence[RankDump]) -> Any:
    """Return the rank's own part of a tensor, reduced over the axes of the mesh that hold partial values.

    None if the dump lacks one of their ranks.
    """
    import numpy as np

    axes = [axis for axis, placement in enumerate(tensor.placements) if placement.kind == "partial"]
    due = prod(tensor.mesh[axis] for axis in axes)
    if due == 1:
        return tensor.local
    reductions = {tensor.placements[axis].reduction for axis in axes}
    own = _without(tensor, axes)
    if own is None or len(reductions) > 1 or not reductions <= set(REDUCTIONS):
        return None
    parts: dict[Any, Any] = {}
    for dump in dumps:
        other = dump.tensors.get(name)
        if not isinstance(other, DistributedTensor) or (other.mesh, other.placements) != (
            tensor.mesh,
            tensor.placements,
        ):
            continue
        if _without(other, axes) == own and other.local.shape == tensor.local.shape:
            parts[other.coordinates] = other.local
    if len(parts) != due:
        return None
    stacked = np.stack([parts[place] for place in sorted(parts)]).astype(np.float32)
    reduction = reductions.pop()
    if reduction in ("sum", "avg"):
        return stacked.sum(0) / (due if reduction == "avg" else 1)
    return stacked.max(0) if reduction == "max" else stacked.min(0)


def _without(tensor: DistributedTensor, axes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the rank's coordinates along the other axes of the mesh; None if unknown."""
    if tensor.coordinates is None:
        return None
    return tuple(place for axis, place in enumerate(tensor.coordinates) if axis not in axes)
