"""Detects shards of tensor-parallel ranks in the wrong place, by matching blocks of the actual with the expected tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.matrix_view import MatrixView, Rearrangement

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair

MIN_ELEMENTS, MIN_WIDTH = 8, 4
"""Elements, and rows or columns, that a rank's shard has at least."""


def propose_shard_orders(pair: MatrixPair, view: MatrixView, actual: NDArray[Any]) -> Iterator[Rearrangement]:
    """Yield rearrangements in which each block is some block of the source: permuted ranks, a rank's shard twice."""
    for axis in (0, 1):
        if axis == 1 and actual.shape[1] == 1:
            continue
        sizes = [
            ranks
            for ranks in pair.input.geometry.tp_sizes(actual.shape[axis])
            if actual.size // ranks >= MIN_ELEMENTS and actual.shape[axis] // ranks >= MIN_WIDTH
        ]
        if not sizes or _match_blocks(view, actual, axis, sizes[-1]) is None:
            # If large blocks moved, small ones did too.
            continue
        for ranks in sizes:
            mapping = _match_blocks(view, actual, axis, ranks)
            if mapping is None or mapping == list(range(ranks)):
                continue
            width = actual.shape[axis] // ranks
            order = (np.array(mapping)[:, None] * width + np.arange(width)).reshape(-1).astype(np.int64)
            listed = ", ".join(map(str, mapping[:8])) + (", …" if ranks > 8 else "")
            if len(set(mapping)) == ranks:
                code, text = "tp-order", f"the shards of {ranks} tensor-parallel ranks are in the order {listed}"
            else:
                code = "tp-duplicated"
                text = f"shards of {ranks} tensor-parallel ranks are there more than once (ranks {listed})"
            yield Rearrangement(code, text, rows=None if axis else order, columns=order if axis else None)


def _match_blocks(view: MatrixView, actual: NDArray[Any], axis: int, ranks: int) -> list[int] | None:
    """Return the source block of each block, judged by a few elements; a block that may be itself is itself. None if unknown."""
    width, across = actual.shape[axis] // ranks, actual.shape[1 - axis]
    inside = np.unique(np.linspace(0, width - 1, 8).astype(np.int64))
    over = np.unique(np.linspace(0, across - 1, 8).astype(np.int64))
    along = (np.arange(ranks)[:, None, None] * width + inside[None, :, None]).astype(np.int64)
    rows, columns = (along, over[None, None]) if axis == 0 else (over[None, None], along)
    was = view.pick(rows, columns).reshape(ranks, -1)
    now = actual[rows, columns].reshape(ranks, -1)
    alike = (now[:, None] == was[None]).all(axis=2)
    if not alike.any(axis=1).all():
        return None
    return [number if alike[number, number] else int(alike[number].argmax()) for number in range(ranks)]
