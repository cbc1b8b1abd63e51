"""Measures records of sparse attention: which earlier positions the indexer of each layer let a token attend to.

Row t of a column holds up to k positions of its own sequence, from 0 to t, for each layer, and -1 for the rest. DeepSeek's sparse
attention (DSA) chooses them; where it attends to compressed positions, these count, which are never larger. A replay feeds the
engine's positions to the trainer (radixark/miles miles/utils/replay_base.py, `rollout_indexer_topk`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.metrics.routing_record import is_due

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Block, Rollouts

CELLS = 1 << 22
"""Positions that are compared at a time."""
LEAST_OVERLAP = 0.8
"""Share of the engine's positions that the trainer has to choose too. miles' check of a replay has this number."""


@dataclass(frozen=True)
class WrongPosition:
    """A row with a position that no token can attend to."""

    sequence: int
    token: int
    """Its place in the sequence, from 0."""
    layer: int
    index: int
    """The wrong position."""
    rows: int
    """Number of such rows."""
    sequences: int
    """Number of sequences with one."""


@dataclass(frozen=True)
class IndexerAgreement:
    """How far the sets of positions of both sides overlap."""

    rows: int
    """Number of compared tokens."""
    other: int
    """Number of tokens for which the overlap is below `LEAST_OVERLAP` in some layer."""
    overlap: NDArray[np.float64]
    """Mean share of the engine's positions that the trainer has too, for each layer [layers]."""
    first: tuple[int, int, int] | None
    """Sequence, token and layer of the first overlap below the limit."""


def find_wrong_position(rollouts: Rollouts, column: str, kind: str) -> WrongPosition | None:
    """Return the first row with a wrong position of a kind, and how many there are; None where there is none.

    kind: ``later`` (than its own token), ``negative`` (below -1), ``double`` (the same one twice).
    """
    import numpy as np

    first: tuple[int, int, int, int] | None = None
    number = 0
    sequences: set[int] = set()
    for block, rows, begin in _iter_rows(rollouts, column):
        own = slice(begin, begin + len(rows))
        positions, due = block.positions[own], is_due(block)[own]
        if kind == "double":
            values = np.sort(rows, 2)
            wrong = np.zeros(values.shape, bool)
            wrong[..., 1:] = (values[..., 1:] == values[..., :-1]) & (values[..., 1:] >= 0)
        else:
            values = rows
            wrong = values > positions[:, None, None] if kind == "later" else values < -1
        wrong &= due[:, None, None]
        found = np.flatnonzero(wrong.any((1, 2)))
        if not len(found):
            continue
        number += len(found)
        owners = block.owners[own]
        sequences.update(owners[found].tolist())
        if first is None:
            place = int(found[0])
            layer = int(wrong[place].any(1).argmax())
            index = int(values[place, layer][wrong[place, layer]][0])
            first = int(owners[place]), int(positions[place]), layer, index
    return None if first is None else WrongPosition(*first, number, len(sequences))


def compare_indexers(rollouts: Rollouts) -> IndexerAgreement | None:
    """Compare the sets of both sides, where both recorded positions; None where a side has none, or other layers."""
    import numpy as np

    columns = [rollouts.columns.get(f"{side}_indexer") for side in ("engine", "trainer")]
    if columns[0] is None or columns[1] is None or columns[0].shape[1] != columns[1].shape[1]:
        return None
    sums, weights = np.zeros(columns[0].shape[1]), np.zeros(columns[0].shape[1])
    compared = other = 0
    first: tuple[int, int, int] | None = None
    for block, begin, overlap in _iter_overlaps(rollouts):
        known = ~np.isnan(overlap)
        sums, weights = sums + np.nansum(overlap, 0), weights + known.sum(0)
        compared += int(known.any(1).sum())
        low = known & (overlap < LEAST_OVERLAP)
        places = np.flatnonzero(low.any(1))
        other += len(places)
        if first is None and len(places):
            place = int(places[0])
            first = (
                int(block.owners[begin + place]), int(block.positions[begin + place]), int(low[place].argmax())
            )  # fmt: skip
    if not compared:
        return None
    return IndexerAgreement(compared, other, sums / np.maximum(weights, 1), first)


def find_other_positions(rollouts: Rollouts) -> NDArray[np.bool_]:
    """Bool [T]: whether the overlap of a token's positions is below `LEAST_OVERLAP` in some layer. Both sides have columns."""
    import numpy as np

    found = np.zeros(len(rollouts.tokens), bool)
    for block, begin, overlap in _iter_overlaps(rollouts):
        start = block.token_slice.start + begin
        found[start : start + len(overlap)] = (overlap < LEAST_OVERLAP).any(1)
    return found


def _iter_overlaps(rollouts: Rollouts) -> Iterator[tuple[Block, int, NDArray[np.float64]]]:
    """Yield a block, the first of its tokens, and the overlap of these tokens, [tokens, layers]; NaN where a side has none."""
    import numpy as np

    trainer = rollouts.columns["trainer_indexer"]
    for block, ours, begin in _iter_rows(rollouts, "engine_indexer"):
        start = block.token_slice.start + begin
        theirs = np.asarray(trainer[start : start + len(ours)])
        span = int(max(ours.max(initial=0), theirs.max(initial=0))) + 1
        cell = np.arange(ours.shape[0] * ours.shape[1], dtype=np.int64).reshape(*ours.shape[:2], 1) * span
        valid, theirs_valid = ours >= 0, theirs >= 0
        shared = np.zeros(ours.shape, bool)
        shared[valid] = np.isin((cell + ours)[valid], (cell + theirs)[theirs_valid])
        number = valid.sum(2)
        with np.errstate(invalid="ignore", divide="ignore"):
            overlap = shared.sum(2) / number
        yield block, begin, np.where((number > 0) & theirs_valid.any(2), overlap, np.nan)


def _iter_rows(rollouts: Rollouts, column: str) -> Iterator[tuple[Block, NDArray[Any], int]]:
    """Yield a block, some of its rows, and the number of the first of these within the block."""
    import numpy as np

    values = rollouts.columns[column]
    size = max(1, CELLS // max(1, values.shape[1] * values.shape[2]))
    for block in rollouts.blocks():
        for start in range(block.token_slice.start, block.token_slice.stop, size):
            stop = min(start + size, block.token_slice.stop)
            yield block, np.asarray(values[start:stop]), start - block.token_slice.start
