"""Finds blocks of zero bytes, and whole matrices, that a failed write or a lost rank left."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.roles import (
    find_vocabulary_tensors,
    is_matrix,
    is_packed,
    is_router,
    is_scale,
    name_pattern,
    starts_at_zero,
)
from ckptcheck.values.detectors.structured_tensors import (
    is_diagonal_pattern,
    is_fourier_row,
    is_learned_weight,
    is_selection,
)
from ckptcheck.values.detectors.token_usage import find_ordinary_rows
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stats import MIN_ZERO_RUN, TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard

MAX_PADDING_SHARE = 1 / 8
"""Share of a matrix's rows that may be zero at its end: sizes are padded to multiples for kernels and ranks."""


class ZeroPart(NamedTuple):
    """The elements of one tensor that a zero run covers."""

    tensor: str
    begin: int
    """First byte, from the start of the data."""
    end: int
    """The byte after the last, from the start of the data."""

    @property
    def nbytes(self) -> int:
        """Bytes of the part; negative if the run covers no whole element."""
        return self.end - self.begin


class ZeroBlock(msgspec.Struct, frozen=True):
    """A run of zero bytes in matrices that should not be zero there."""

    begin: int
    """First byte, from the start of the data."""
    nbytes: int
    tensors: tuple[str, ...]
    """The matrices that the run touches."""
    is_half: bool
    """Whether the run is exactly half of one matrix."""
    lost_tensors: tuple[str, ...] = ()
    """The ones among `tensors` that are zero as a whole."""


def find_zero_blocks(ckpt: Checkpoint) -> dict[str, list[ZeroBlock]]:
    """Return shard → the zero blocks in matrices that are otherwise not zero, and in neighbours that were lost with them."""
    blocks = {
        name: list(_iter_shard_blocks(ckpt, ckpt.shards[name], runs))
        for name, runs in ckpt.values.zero_runs.items()
        if name not in ckpt.values.shrunk and name not in ckpt.values.unread
    }
    return {name: found for name, found in blocks.items() if found}


def _iter_shard_blocks(ckpt: Checkpoint, shard: Shard, runs: list[tuple[int, int]]) -> Iterator[ZeroBlock]:
    """Yield the zero blocks of a shard. runs: [begin, end) of its zero runs, from the start of the data."""
    tensors_by_run = _tensors_by_run(shard, runs)
    parts_by_run = [
        [
            part
            for tensor in tensors
            if (part := _part_in_run(shard, tensor, run)).nbytes > 0 and not _may_be_zero(ckpt, shard, part)
        ]
        for run, tensors in zip(runs, tensors_by_run, strict=True)
    ]
    patterns = _patterned_matrices(shard, parts_by_run)
    for (begin, end), tensors, all_parts in zip(runs, tensors_by_run, parts_by_run, strict=True):
        parts = [part for part in all_parts if part.tensor not in patterns]
        nbytes = sum(part.nbytes for part in parts)
        is_torn = nbytes >= MIN_ZERO_RUN
        lost = _find_lost_matrices(ckpt, shard, (begin, end), is_torn, tensors)
        if lost:
            damaged = {*lost, *(part.tensor for part in parts)}
            names = tuple(tensor for tensor in tensors if tensor in damaged)
            start = max(begin, shard.tensors[names[0]].data_offsets[0])
            yield ZeroBlock(start, end - start, names, False, tuple(lost))
        elif is_torn:
            names = tuple(part.tensor for part in parts)
            is_half = len(parts) == 1 and 2 * nbytes == shard.tensors[names[0]].nbytes
            yield ZeroBlock(parts[0].begin, parts[-1].end - parts[0].begin, names, is_half)


def _tensors_by_run(shard: Shard, runs: list[tuple[int, int]]) -> list[list[str]]:
    """Return for each zero run the tensors that it touches, in the order of the data."""
    order = sorted(shard.tensors, key=lambda tensor: shard.tensors[tensor].data_offsets)
    begins = [shard.tensors[tensor].data_offsets[0] for tensor in order]
    return [order[max(bisect_right(begins, begin) - 1, 0) : bisect_left(begins, end)] for begin, end in runs]


def _patterned_matrices(shard: Shard, parts_by_run: list[list[ZeroPart]]) -> set[str]:
    """Return the matrices whose zeros lie beside a diagonal, or beside one element a row."""
    runs: dict[str, list[tuple[int, int]]] = {}
    for tensor, begin, end in (part for parts in parts_by_run for part in parts):
        low = shard.tensors[tensor].data_offsets[0]
        runs.setdefault(tensor, []).append((begin - low, end - low))
    matrices = set()
    for tensor, pieces in runs.items():
        width = FORMATS[shard.tensors[tensor].dtype].bits // 8
        shape, nbytes = shard.tensors[tensor].shape, shard.tensors[tensor].nbytes
        if is_diagonal_pattern(pieces, shape[-1] * width, width) or is_selection(pieces, shape[0], nbytes):
            matrices.add(tensor)
    return matrices


def _part_in_run(shard: Shard, name: str, run: tuple[int, int]) -> ZeroPart:
    """Return the whole elements of a tensor within a run of zero bytes: a number such as 1.0 has zero bytes too."""
    tensor = shard.tensors[name]
    width = max(1, FORMATS[tensor.dtype].bits // 8)
    low, high = tensor.data_offsets
    begin, end = max(run[0], low), min(run[1], high)
    return ZeroPart(name, low + -(-(begin - low) // width) * width, low + (end - low) // width * width)


def _may_be_zero(ckpt: Checkpoint, shard: Shard, part: ZeroPart) -> bool:
    """Whether the zeros of a part may be intended."""
    name, begin, end = part
    stats = ckpt.values.tensors.get(name)
    if stats is None or stats.zero or is_scale(name) or starts_at_zero(name):
        return True
    low, high = shard.tensors[name].data_offsets
    if is_packed(stats):
        return 2 * (end - begin) != high - low
    if not is_matrix(stats) or not is_learned_weight(name):
        return True
    row = (high - low) // stats.shape[0]
    width = max(1, (high - low) // prod(stats.shape))
    if is_fourier_row(stats.shape, (begin - low) // width, (end - low) // width):
        return True
    if name in find_vocabulary_tensors(ckpt):
        # A Megatron run holds the vocabulary in parts, with padding in the last one.
        is_whole_matrix = ckpt.config is not None
        share = is_whole_matrix and _is_rank_share(
            begin - low, end - low, high - low, lambda: _has_ordinary_rows(ckpt, begin - low, end - low, row)
        )
        return not (share or _is_torn(begin - low, end - low, row))
    if "embed" in name:  # another table, or a kernel of image patches: whole rows or filters may be unused
        row = row if len(stats.shape) > 3 else (high - low) * stats.shape[-1] // prod(stats.shape)
        # Position 0 of a sinusoidal table is zero for one half of its row.
        is_half = row % 2 == 0 and (begin - low) % (row // 2) == 0 and (end - low) % (row // 2) == 0
        return is_half or not _is_torn(begin - low, end - low, row)
    at_the_end = end == high and (begin - low) % row == 0 and end - begin <= MAX_PADDING_SHARE * (high - low)
    return at_the_end and _may_be_padded(ckpt, stats)


def _is_torn(begin: int, end: int, row: int) -> bool:
    """Whether half a row or more is zero next to numbers of the same row: unused rows are zero from end to end."""
    first, last = -(-begin // row) * row, end // row * row
    pieces = (end - begin,) if first > last else (first - begin, end - last)
    return any(2 * piece >= row for piece in pieces)


def _is_rank_share(begin: int, end: int, nbytes: int, is_whole: Callable[[], bool]) -> bool:
    """Whether [begin, end) is exactly the part of one of 2, 4 or 8 ranks.

    The last part of 4 or 8 may be padding, so it counts only if `is_whole` returns that it is not.
    """
    return any(
        ranks * (end - begin) == nbytes and begin % (end - begin) == 0 and (end < nbytes or ranks == 2 or is_whole())
        for ranks in (2, 4, 8)
    )


def _has_ordinary_rows(ckpt: Checkpoint, begin: int, end: int, row: int) -> bool:
    """Whether most of the rows belong to ordinary tokens of the tokenizer's own vocabulary."""
    rows = range(begin // row, end // row)
    return 2 * len(find_ordinary_rows(ckpt, rows)) > len(rows)


def _may_be_padded(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a matrix may be padded with rows: a stack of experts, a router and a matrix of one row per hidden unit may not."""
    embedding = ckpt.values.tensors.get(ckpt.components.embedding or "")
    hidden = embedding.shape[-1] if embedding is not None and embedding.shape else None
    return len(stats.shape) == 2 and stats.shape[0] != hidden and not is_router(ckpt, stats)


def _find_lost_matrices(
    ckpt: Checkpoint, shard: Shard, run: tuple[int, int], is_torn: bool, tensors: list[str]
) -> list[str]:
    """Return the matrices that a run of zeros covers as a whole and that were lost, in order; none if they may be intended.

    They were lost in one of three cases: the run is torn; it covers two matrices of different name patterns, and other matrices
    of these patterns are not zero; or it covers two, and the shard holds nothing but zeros.
    run: [begin, end) from the start of the data.
    is_torn: whether the run also covers a part of a matrix that is not zero.
    tensors: those that the run touches.
    """
    zero_matrices = [name for name in tensors if _lies_in(shard, name, run) and _is_wrongly_zero(ckpt, name)]
    if not zero_matrices or is_torn:
        return zero_matrices
    used_patterns = {name_pattern(name) for name in zero_matrices} & _list_nonzero_patterns(ckpt)
    length = max(tensor.data_offsets[1] for tensor in shard.tensors.values())
    if len(used_patterns) > 1 or (run == (0, length) and len(zero_matrices) > 1):
        return [name for name in zero_matrices if name not in find_initial_constants(ckpt)]
    return []


@remembered
def _list_nonzero_patterns(ckpt: Checkpoint) -> set[str]:
    """Return the name patterns (see `name_pattern`) with at least one tensor that is not zero."""
    return {name_pattern(name) for name, stats in ckpt.values.tensors.items() if not stats.zero}


def _lies_in(shard: Shard, name: str, run: tuple[int, int]) -> bool:
    begin, end = shard.tensors[name].data_offsets
    return run[0] <= begin < end <= run[1]


def _is_wrongly_zero(ckpt: Checkpoint, name: str) -> bool:
    """Whether a matrix is all zero and should not be."""
    stats = ckpt.values.tensors.get(name)
    if stats is None or not stats.zero or is_scale(name) or starts_at_zero(name) or name in find_blank_tensors(ckpt):
        return False
    return is_packed(stats) or (is_matrix(stats) and is_learned_weight(name))
