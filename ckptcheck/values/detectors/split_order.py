"""Finds fused projections whose split does not undo the order in which they were joined, in every layer.

Trainers keep gate and up, or queries, keys and values, in one matrix: row by row in turn, or one piece for each tensor-parallel
rank or group of heads. A converter that cuts such a matrix into halves or thirds gets matrices of the right shape that
hold each other's rows. In a trained model the norms of up's rows follow down's columns, and the values' rows follow the
output projection's columns (see `exchanged_projections`). If they do not, this module tries each known order; the order
in which they do is the one in which the matrix was joined.

Megatron-LM joins `linear_fc1` rank by rank and `linear_qkv` group by group; gpt-oss joins gate and up row by row; GPT-NeoX and
BLOOM join queries, keys and values head by head.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_profiles import clip_profile, correlate_profiles, take_profile
from ckptcheck.values.detectors.exchanged_projections import Block, list_kinds, measure_partner
from ckptcheck.values.detectors.matrix_samples import MatrixPart, compute_mean_squares, read_rows
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

RANKS = (2, 4, 8, 16)
"""Tensor-parallel sizes whose pieces are tried."""
EXAMINED = 4
"""Layers that are examined, spread between the first and the last."""
AGREES, GAIN = 0.5, 0.2
"""Correlation that the reported order has to have in the median of those layers, and its lead over the stored order.
With two pieces, half of the rows lie where they belong."""


class WrongSplit(msgspec.Struct, frozen=True):
    """Projections that hold each other's rows in every layer."""

    tensors: tuple[str, ...]
    """The projections of the first examined layer, in the order in which they were joined."""
    order: str
    """How they were joined: "row by row"."""
    stored: float
    """The correlation with their partner in the stored order, in the median layer."""
    restored: float
    """The same in the order `how`."""


class _Order(msgspec.Struct, frozen=True):
    """A way to join matrices: where the rows of the last one lie."""

    name: str
    rows: NDArray[np.intp]
    """[channel]: the row of the joined matrix for each sampled channel of the last matrix."""


def find_wrong_splits(ckpt: Checkpoint) -> list[WrongSplit]:
    """Return gates and ups, or queries, keys and values, whose split does not undo the order in which they were joined.

    It uses the samples of the value pass; if they do not agree it reads 256 rows of four layers for each order. Raises
    Skip if a file shrank since its values were read, OSError if reading fails.
    """
    found = []
    for examined in _iter_examined(ckpt):
        partners = [clip_profile(take_profile(measure_partner(ckpt, block))) for block in examined]
        stored = median(
            correlate_profiles(_take_rows(ckpt, block), partner)
            for block, partner in zip(examined, partners, strict=True)
        )
        if stored > 1 - 2 * GAIN:
            continue
        middle = len(examined) // 2
        for order in _iter_orders(ckpt, examined[middle]):
            if _agree(ckpt, examined[middle], order, partners[middle]) < max(AGREES, stored + GAIN):
                continue
            restored = median(
                _agree(ckpt, block, order, partner) for block, partner in zip(examined, partners, strict=True)
            )
            if restored >= max(AGREES, stored + GAIN):
                tensors = tuple(stats.name for stats in _list_parts(examined[0]))
                found.append(WrongSplit(tensors, order.name, stored, restored))
                break
    return found


def _iter_examined(ckpt: Checkpoint) -> Iterator[list[Block]]:
    """Yield the examined layers of each kind of block."""
    for blocks in list_kinds(ckpt):
        inner = blocks[1:-1]
        examined = inner[:: max(1, -(-len(inner) // EXAMINED))]
        if len(examined) >= EXAMINED:
            yield examined


def iter_first_parts(ckpt: Checkpoint) -> Iterator[MatrixPart]:
    """Yield the parts of matrices that are read in each order first: in one layer."""
    for examined in _iter_examined(ckpt):
        block = examined[len(examined) // 2]
        for order in _iter_orders(ckpt, block):
            yield from (part for _, part in _iter_parts(block, order))


def _list_parts(block: Block) -> tuple[TensorStats, ...]:
    """Return gate and up, or query, key and value: the matrices that may have been one, in their order."""
    return (block.second, block.first) if block.query is None else (block.query, block.first, block.second)


def _take_rows(ckpt: Checkpoint, block: Block) -> NDArray[np.float64]:
    """Return the profile of the sampled rows of up, or of the values, as they are stored."""
    last = _list_parts(block)[-1]
    return clip_profile(take_profile(ckpt.values.samples[last.name].rows))


def _iter_orders(ckpt: Checkpoint, block: Block) -> Iterator[_Order]:
    """Yield the orders in which the matrices of a block may have been joined."""
    import numpy as np

    size = block.first.shape[0]
    channels = choose_channels(size)
    if block.query is None:
        yield _Order("row by row, a gate before its up", 2 * channels + 1)
        yield _Order("row by row, an up before its gate", 2 * channels)
        for ranks in RANKS:
            if size % ranks == 0:
                piece = size // ranks
                rows = channels // piece * 2 * piece + channels % piece
                yield _Order(f"in {ranks} pieces, one for each rank, the gate of each before its up", rows + piece)
                yield _Order(f"in {ranks} pieces, one for each rank, the up of each before its gate", rows)
        return
    config = ckpt.config
    heads = config.integer("num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head") if config else None
    if not heads or size % heads:
        return
    joined = block.query.shape[0] + 2 * size
    for pieces in sorted({pieces for pieces in (*RANKS, heads) if pieces > 1 and heads % pieces == 0}):
        piece, part = joined // pieces, size // pieces
        rows = channels // part * piece + (piece - part) + channels % part
        name = f"in {pieces} pieces, one for each " + ("group of heads" if pieces == heads else "rank")
        yield _Order(name, np.asarray(rows))


def _iter_parts(block: Block, order: _Order) -> Iterator[tuple[NDArray[np.intp], MatrixPart]]:
    """Yield the sampled channels that each matrix of a block holds in this order, and the part of the matrix with them."""
    import numpy as np

    begin = 0
    for stats in _list_parts(block):
        end = begin + stats.shape[0]
        here = np.flatnonzero((order.rows >= begin) & (order.rows < end))
        if len(here):
            yield here, MatrixPart(stats, order.rows[here] - begin, choose_channels(stats.shape[1]))
        begin = end


def _agree(ckpt: Checkpoint, block: Block, order: _Order, partner: NDArray[np.float64]) -> float:
    """Return the correlation between a block's partner and the rows of up, or of the values, in this order."""
    import numpy as np

    squares = np.zeros(len(order.rows))
    for here, part in _iter_parts(block, order):
        squares[here] = compute_mean_squares(read_rows(ckpt, *part), 1)
    return correlate_profiles(clip_profile(take_profile(squares)), partner)
