"""Whole matrices within a run of zeros that a failed write left: one by one each might have been meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptcheck.values.fresh import looks_untrained
from ckptcheck.values.patterned import is_learned
from ckptcheck.values.roles import is_matrix, is_packed, is_scale, starts_at_zero, template

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.header import Shard


def lost_matrices(
    ckpt: Checkpoint,
    shard: Shard,
    run: tuple[int, int],
    torn: bool,
    within: list[str],
    filled: Callable[[], set[str]],
) -> list[str]:
    """Return the matrices that lie in a run of zeros as a whole and were lost, in order; none where they may be meant.

    run: [begin, end) from the start of the data. torn: whether it also tears a block out of a matrix that is not zero: then
    all were lost. Else there have to be two of different kinds, of which others in the model are not zero; or two in a shard
    that is nothing but zeros. within: the tensors that the run touches. filled: see `filled_kinds`, asked for only then.
    """
    whole = [name for name in within if _lies_in(shard, name, run) and _is_judged(ckpt, name)]
    if not whole or torn:
        return whole
    used = {template(name) for name in whole} & filled()
    length = max(tensor.data_offsets[1] for tensor in shard.tensors.values())
    if (len(used) > 1 or (run == (0, length) and len(whole) > 1)) and not looks_untrained(ckpt):
        return whole
    return []


def filled_kinds(ckpt: Checkpoint) -> set[str]:
    """Return the kinds of tensors, names with {} for numbers, of which at least one is not zero."""
    return {template(name) for name, stats in ckpt.values.tensors.items() if not stats.zero}


def _lies_in(shard: Shard, name: str, run: tuple[int, int]) -> bool:
    begin, end = shard.tensors[name].data_offsets
    return run[0] <= begin < end <= run[1]


def _is_judged(ckpt: Checkpoint, name: str) -> bool:
    """Whether a matrix is all zero that should not be."""
    stats = ckpt.values.tensors.get(name)
    if stats is None or not stats.zero or is_scale(name) or starts_at_zero(name):
        return False
    return is_packed(stats) or (is_matrix(stats) and is_learned(name))
