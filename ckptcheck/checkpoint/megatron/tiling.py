"""Whether the chunks of a tensor cover it exactly once."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import prod

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor

MAX_CELLS = 1 << 22
"""The finest grid that is looked at; 4 million cells are more than any checkpoint has chunks."""


@dataclass(frozen=True)
class Cover:
    """missing, doubled: how many elements no chunk holds, and several do, and where the first box of them begins.

    beyond: the first chunk that reaches out of the tensor. Where one does, nothing else is said.
    unexamined: the grid is too fine to be laid out; missing and doubled are then what the sum of the chunks alone shows.
    """

    missing: int = 0
    missing_at: tuple[int, ...] = ()
    doubled: int = 0
    doubled_at: tuple[int, ...] = ()
    beyond: Chunk | None = None
    unexamined: bool = False


EXACT = Cover()


def cover_of(tensor: GlobalTensor) -> Cover:
    """Lay the chunks on the grid that their own edges draw, and count what lies on each cell."""
    shape, chunks = tensor.shape, tensor.chunks
    if len(chunks) == 1 and chunks[0].sizes == shape and not any(chunks[0].offsets):
        return EXACT
    for chunk in chunks:
        if any(at + size > end for at, size, end in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            return Cover(beyond=chunk)
    if 0 in shape:
        return Cover()
    filled = [chunk for chunk in chunks if chunk.elements]
    edges = []
    for axis, size in enumerate(shape):
        starts = {edge for c in filled for edge in (c.offsets[axis], c.offsets[axis] + c.sizes[axis])}
        edges.append(sorted(starts | {0, size}))
    if prod(len(marks) - 1 for marks in edges) > MAX_CELLS:
        rest = prod(shape) - sum(chunk.elements for chunk in filled)
        return Cover(missing=max(rest, 0), doubled=max(-rest, 0), unexamined=True)
    import numpy as np

    count = np.zeros([len(marks) - 1 for marks in edges], np.uint16)
    for chunk in filled:
        box = tuple(
            slice(bisect_left(marks, at), bisect_left(marks, at + size))
            for marks, at, size in zip(edges, chunk.offsets, chunk.sizes, strict=True)
        )
        count[box] += 1

    def amount(cells: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[int, tuple[int, ...]]:
        places = np.argwhere(cells).tolist()
        total = sum(prod(marks[at + 1] - marks[at] for marks, at in zip(edges, cell, strict=True)) for cell in places)
        return total, tuple(marks[at] for marks, at in zip(edges, places[0], strict=True)) if places else ()

    return Cover(*amount(count == 0), *amount(count > 1))
