"""Checks whether the chunks of a tensor cover each of its elements exactly once."""

from __future__ import annotations

from bisect import bisect_left
from math import prod

import msgspec

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor

MAX_CELLS = 1 << 22
"""Cells of the finest grid that is examined; no checkpoint has as many chunks."""


class TilingGap(msgspec.Struct, frozen=True):
    """How the chunks of a tensor fail to tile it."""

    missing: int = 0
    """Number of elements that no chunk holds."""
    missing_at: tuple[int, ...] = ()
    """Begin of the first box of missing elements."""
    doubled: int = 0
    """Number of elements that several chunks hold."""
    doubled_at: tuple[int, ...] = ()
    """Where the first box of them begins."""
    beyond: Chunk | None = None
    """The first chunk that reaches out of the tensor; if there is one, the other fields keep their defaults."""
    unexamined: bool = False
    """The grid is too fine to examine; `missing` and `doubled` then follow only from the sum of the chunks' sizes."""


EXACT = TilingGap()


def find_tiling_gap(tensor: GlobalTensor) -> TilingGap:
    """Lay the chunks on the grid that their edges define, and count the chunks on each cell."""
    shape, chunks = tensor.shape, tensor.chunks
    if len(chunks) == 1 and chunks[0].sizes == shape and not any(chunks[0].offsets):
        return EXACT
    for chunk in chunks:
        if any(at + size > end for at, size, end in zip(chunk.offsets, chunk.sizes, shape, strict=True)):
            return TilingGap(beyond=chunk)
    if 0 in shape:
        return TilingGap()
    filled = [chunk for chunk in chunks if chunk.elements]
    edges = []
    for axis, size in enumerate(shape):
        starts = {edge for c in filled for edge in (c.offsets[axis], c.offsets[axis] + c.sizes[axis])}
        edges.append(sorted(starts | {0, size}))
    if prod(len(marks) - 1 for marks in edges) > MAX_CELLS:
        rest = prod(shape) - sum(chunk.elements for chunk in filled)
        return TilingGap(missing=max(rest, 0), doubled=max(-rest, 0), unexamined=True)
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

    return TilingGap(*amount(count == 0), *amount(count > 1))
