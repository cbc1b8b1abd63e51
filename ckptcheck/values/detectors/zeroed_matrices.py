"""Finds whole matrices that were lost with a block of zeros, where a single zero matrix may be zero on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptcheck.values.detectors.blank_weights import find_blank_tensors
from ckptcheck.values.detectors.init_detection import find_initial_constants
from ckptcheck.values.detectors.roles import is_matrix, is_packed, is_scale, name_pattern, starts_at_zero
from ckptcheck.values.detectors.structured_tensors import is_learned_weight

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard


def find_lost_matrices(
    ckpt: Checkpoint,
    shard: Shard,
    run: tuple[int, int],
    is_torn: bool,
    tensors: list[str],
    get_nonzero_patterns: Callable[[], set[str]],
) -> list[str]:
    """Return the matrices that a run of zeros covers as a whole and that were lost, in order; none if they may be intended.

    They were lost in one of three cases: the run is torn; it covers two matrices of different name patterns, and other matrices
    of these patterns are not zero; or it covers two, and the shard holds nothing but zeros.
    run: [begin, end) from the start of the data.
    torn: whether the run also covers a part of a matrix that is not zero.
    within: the tensors that the run touches.
    filled: returns `nonzero_name_patterns`; called only if needed.
    """
    zero_matrices = [name for name in tensors if _lies_in(shard, name, run) and _is_wrongly_zero(ckpt, name)]
    if not zero_matrices or is_torn:
        return zero_matrices
    used_patterns = {name_pattern(name) for name in zero_matrices} & get_nonzero_patterns()
    length = max(tensor.data_offsets[1] for tensor in shard.tensors.values())
    if len(used_patterns) > 1 or (run == (0, length) and len(zero_matrices) > 1):
        return [name for name in zero_matrices if name not in find_initial_constants(ckpt)]
    return []


def nonzero_name_patterns(ckpt: Checkpoint) -> set[str]:
    """Return the name patterns (see `name_pattern`) of which at least one tensor is not zero."""
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
