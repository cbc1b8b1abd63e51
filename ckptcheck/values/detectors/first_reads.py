"""Lists the places that detectors read first of a sound checkpoint, so that a pass over an object store can keep them.

Detectors choose their places by the statistics of the pass. Here they choose them by the statistics of an ordinary matrix,
before the pass. What they read beyond that, for the tensors that are not ordinary, they read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING

from ckptcheck.values.channel_sample import MAX_CHANNELS, ChannelSample, is_sampled
from ckptcheck.values.detectors import rope_order, split_order, unit_pairs
from ckptcheck.values.detectors.byte_compare import PREFIX_BYTES
from ckptcheck.values.detectors.exchanged_projections import choose_partner_part, choose_query_part, iter_blocks
from ckptcheck.values.detectors.init_detection import PREVIEW_BYTES
from ckptcheck.values.detectors.matrix_samples import MatrixPart, make_cut
from ckptcheck.values.detectors.middle_pieces import PIECE
from ckptcheck.values.detectors.repeated_shares import list_headed
from ckptcheck.values.detectors.roles import is_matrix, is_norm
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.kept_places import Cut, Places, merge_spans
from ckptcheck.values.stats import TensorStats, ValueStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MOST_BYTES = 1 << 28
"""Bytes that are kept at most. What does not fit is read again."""

MAX_SLICES = 1 << 10
"""Experts of a stack, or heads, whose beginnings are kept."""


def list_first_reads(ckpt: Checkpoint) -> dict[str, Places]:
    """Return tensor → the places of it that detectors read first."""
    ordinary = _expect_ordinary(ckpt)
    cuts: dict[str, dict[Cut, None]] = {}
    for part in _iter_parts(ordinary):
        if part.stats.name in ordinary.values.samples:  # whose pieces are whole rows
            cuts.setdefault(part.stats.name, {})[make_cut(part)] = None
    heads = _find_heads(ordinary)
    kept, room = {}, MOST_BYTES
    for name, stats in ordinary.values.tensors.items():
        tensor = ckpt.tensors[name]
        spans = merge_spans(_iter_spans(stats, tensor.nbytes, heads.get(name, 1)), tensor.nbytes)
        width = tensor.nbytes // tensor.shape[0] if tensor.shape and tensor.shape[0] else 0
        places = Places(spans, width, tuple(cuts.get(name, ())))
        if spans and places.nbytes <= room:
            kept[name] = places
            room -= places.nbytes
    return kept


def _expect_ordinary(ckpt: Checkpoint) -> Checkpoint:
    """Return a checkpoint with the headers of this one, whose values are known and ordinary."""
    import numpy as np

    _ = ckpt.layout, ckpt.components, ckpt.vocabulary_tensors, ckpt.tokenizer, ckpt.can_sample  # once for both
    values = ValueStats()
    for name, tensor in ckpt.tensors.items():
        file = ckpt.tensor_to_file.get(name)
        if file is None or name not in ckpt.shards[file].fitting:
            continue
        values.tensors[name] = TensorStats(name, file, tensor.dtype, tensor.shape, absmax=1.0)
        if is_sampled(name, tensor):
            rows, columns = (min(channels, MAX_CHANNELS) for channels in tensor.shape)
            values.samples[name] = ChannelSample(np.ones(rows), np.ones(columns))
    ordinary = copy(ckpt)
    vars(ordinary).update(memory={}, _values=values)
    return ordinary


def _iter_parts(ckpt: Checkpoint) -> Iterator[MatrixPart]:
    """Yield the rows and columns of matrices that are read first."""
    for pair in chain(*unit_pairs.collect_pairs(ckpt, unit_pairs.FIRST_LOOK).values()):
        yield from (unit_pairs.choose_part(pair, side) for side in (0, 1))
    for stack in ckpt.layout.stacks.values():
        for block in iter_blocks(ckpt, stack):
            chosen = choose_query_part(ckpt, block), choose_partner_part(ckpt, block)
            yield from (part for part in chosen if part is not None)
    yield from split_order.iter_first_parts(ckpt)
    yield from rope_order.iter_first_parts(ckpt)


def _find_heads(ckpt: Checkpoint) -> dict[str, int]:
    """Return projection of keys or values → its number of heads."""
    names_by_role, width = list_headed(ckpt)
    return {name: ckpt.tensors[name].shape[0] // width for name in chain(*names_by_role.values())}


def _iter_spans(stats: TensorStats, nbytes: int, heads: int) -> Iterator[tuple[int, int]]:
    """Yield [begin, end) of the places that are read of a tensor: norms whole, beginnings, and the middle of a matrix."""
    if is_norm(stats):
        yield 0, nbytes
    elif is_matrix(stats):
        slices = stats.shape[0] if len(stats.shape) > 2 else heads
        slices = slices if slices <= MAX_SLICES else 1
        yield from ((nbytes // slices * at, nbytes // slices * at + PREFIX_BYTES) for at in range(slices))
        half = max(PIECE * FORMATS[stats.dtype].bits // 8, PREVIEW_BYTES) // 2 + FORMATS[stats.dtype].bits // 8
        yield nbytes // 2 - half, nbytes // 2 + half
