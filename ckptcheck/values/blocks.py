"""Runs of zero bytes that nobody meant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.lost import filled_kinds, lost_matrices
from ckptcheck.values.patterned import is_learned, steps_by_rows
from ckptcheck.values.roles import is_matrix, is_packed, is_router, is_scale, starts_at_zero, vital
from ckptcheck.values.stats import RUN, TensorStats
from ckptcheck.values.uses import words

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard

PADDING = 1 / 8
"""The share of a matrix's rows that may be zero at its end: sizes are padded to multiples for kernels and ranks."""
TABLE = 8
"""Rows of a table, other than the vocabulary's, from which a rank may have held them: single ones are padding (``padding_idx``)."""
PATCHES = 8
"""Zero filters that stand together in a kernel of patches are lost from the share of 1 / PATCHES; fewer may have died."""


@dataclass(frozen=True)
class Block:
    """A run of zero bytes, [begin, begin + nbytes) from the start of the data.

    tensors: the matrices it is in. half: it is exactly half of one. lost: those of them that are zero as a whole.
    """

    begin: int
    nbytes: int
    tensors: tuple[str, ...]
    half: bool
    lost: tuple[str, ...] = ()


def zeroed(ckpt: Checkpoint) -> dict[str, list[Block]]:
    """Return shard → the blocks of zeros in matrices that are otherwise not zero, and in those around that were lost with them."""
    found: dict[str, list[Block]] = {}
    filled = cache(lambda: filled_kinds(ckpt))
    for name, runs in ckpt.values.zero_runs.items():
        if not runs or name in ckpt.values.shrunk or name in ckpt.values.unread:
            continue
        shard = ckpt.shards[name]
        order = sorted(shard.tensors, key=lambda tensor: shard.tensors[tensor].data_offsets)
        begins = [shard.tensors[tensor].data_offsets[0] for tensor in order]
        parts: list[list[tuple[str, int, int]]] = []
        touched: list[list[str]] = []
        for begin, end in runs:
            first = max(bisect_right(begins, begin) - 1, 0)
            parts.append([])
            touched.append(order[first : bisect_left(begins, end)])
            for tensor in touched[-1]:
                low, high = shard.tensors[tensor].data_offsets
                part = _elements(shard, tensor, max(begin, low), min(end, high))
                if part[1] > part[0] and not _may_be_zero(ckpt, shard, tensor, *part):
                    parts[-1].append((tensor, *part))
        sparse = _patterned(shard, parts)
        for (begin, end), run, within in zip(runs, parts, touched, strict=True):
            told = [part for part in run if part[0] not in sparse]
            nbytes = sum(high - low for _, low, high in told)
            if lost := lost_matrices(ckpt, shard, (begin, end), nbytes >= RUN, within, filled):
                names = tuple(tensor for tensor in within if tensor in lost or tensor in {part[0] for part in told})
                start = max(begin, shard.tensors[names[0]].data_offsets[0])
                found.setdefault(name, []).append(Block(start, end - start, names, False, tuple(lost)))
            elif nbytes >= RUN:
                names = tuple(tensor for tensor, *_ in told)
                half = len(told) == 1 and 2 * nbytes == shard.tensors[names[0]].nbytes
                found.setdefault(name, []).append(Block(told[0][1], told[-1][2] - told[0][1], names, half))
    return found


def _patterned(shard: Shard, parts: list[list[tuple[str, int, int]]]) -> set[str]:
    """Return the matrices whose zeros stand beside a diagonal."""
    runs: dict[str, list[tuple[int, int]]] = {}
    for tensor, begin, end in (part for run in parts for part in run):
        low = shard.tensors[tensor].data_offsets[0]
        runs.setdefault(tensor, []).append((begin - low, end - low))
    found = set()
    for tensor, pieces in runs.items():
        width = FORMATS[shard.tensors[tensor].dtype].bits // 8
        if steps_by_rows(pieces, shard.tensors[tensor].shape[-1] * width, width):
            found.add(tensor)
    return found


def _elements(shard: Shard, name: str, begin: int, end: int) -> tuple[int, int]:
    """Shrink a run of zero bytes to whole elements: a number such as 1.0 ends in zero bytes too."""
    tensor = shard.tensors[name]
    width = max(1, FORMATS[tensor.dtype].bits // 8)
    low = tensor.data_offsets[0]
    return low + -(-(begin - low) // width) * width, low + (end - low) // width * width


def _may_be_zero(ckpt: Checkpoint, shard: Shard, name: str, begin: int, end: int) -> bool:
    """Whether zeros at [begin, end) of the data are no wonder in this tensor."""
    stats = ckpt.values.tensors.get(name)
    if stats is None or stats.zero or is_scale(name) or starts_at_zero(name):
        return True
    low, high = shard.tensors[name].data_offsets
    if is_packed(stats):
        return 2 * (end - begin) != high - low
    if not is_matrix(stats) or not is_learned(name):
        return True
    row = (high - low) // stats.shape[0]
    if name in vital(ckpt):
        whole = ckpt.config is not None  # a Megatron run has them in parts, and padding in the last
        share = whole and _is_share(
            begin - low, end - low, high - low, lambda: _has_words(ckpt, begin - low, end - low, row)
        )
        return not (share or _is_torn(begin - low, end - low, row))
    if "embed" in name:
        return not _is_damaged_table(stats, begin - low, end - low, high - low)
    at_the_end = end == high and (begin - low) % row == 0 and end - begin <= PADDING * (high - low)
    return at_the_end and _may_be_padded(ckpt, stats)


def _is_damaged_table(stats: TensorStats, begin: int, end: int, nbytes: int) -> bool:
    """Whether zeros in another table of embeddings are no unused rows: a part of a row, or what a rank holds, but not the last.

    Position 0 of a sinusoidal table is zero for one half of its row. A kernel that cuts an image into patches is called an
    embedding too; its filters are all in use, but for single ones that died.
    """
    if len(stats.shape) > 3:
        return _is_torn(begin, end, nbytes // stats.shape[0]) or PATCHES * (end - begin) >= nbytes
    row = nbytes * stats.shape[-1] // prod(stats.shape)
    if row % 2 == 0 and begin % (row // 2) == 0 and end % (row // 2) == 0:
        several = end - begin >= TABLE * row and begin % row == 0 and end < nbytes
        return several and _is_share(begin, end, nbytes, lambda: False)
    return _is_torn(begin, end, row)


def _is_torn(begin: int, end: int, row: int) -> bool:
    """Whether half a row or more is zero beside numbers of the same row: rows that nobody uses are zero from end to end."""
    first, last = -(-begin // row) * row, end // row * row
    pieces = (end - begin,) if first > last else (first - begin, end - last)
    return any(2 * piece >= row for piece in pieces)


def _is_share(begin: int, end: int, nbytes: int, is_whole: Callable[[], bool]) -> bool:
    """Whether it is what one of 2, 4 or 8 ranks holds; what the last one holds may be padding, if it is not half of all.

    is_whole: asked whether the last part is known not to be padding.
    """
    return any(
        ranks * (end - begin) == nbytes and begin % (end - begin) == 0 and (end < nbytes or ranks == 2 or is_whole())
        for ranks in (2, 4, 8)
    )


def _has_words(ckpt: Checkpoint, begin: int, end: int, row: int) -> bool:
    """Whether most of the rows are those of words that the tokenizer knows and nobody added."""
    rows = range(begin // row, end // row)
    return 2 * len(words(ckpt, rows)) > len(rows)


def _may_be_padded(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a matrix may have rows beyond the model's own at its end: not a stack of experts, not one row per hidden number."""
    embedding = ckpt.values.tensors.get(ckpt.anatomy.embedding or "")
    hidden = embedding.shape[-1] if embedding is not None and embedding.shape else None
    return len(stats.shape) == 2 and stats.shape[0] != hidden and not is_router(ckpt, stats)
