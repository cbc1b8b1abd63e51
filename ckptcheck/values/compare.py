"""Compares bytes of tensors with each other, for the few that the statistics make suspects."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

STEP = 1 << 22


def read(ckpt: Checkpoint, name: str, start: int, length: int) -> bytes:
    """Read bytes of a tensor's data, from `start` within it."""
    shard = ckpt.shards[ckpt.holders[name]]
    return ckpt.source.read(shard.name, shard.data_start + shard.tensors[name].data_offsets[0] + start, length)


def same_bytes(ckpt: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors of equal dtype and shape hold the same bytes; stops at the first difference."""
    size = ckpt.tensors[first].nbytes
    if ckpt.tensors[second].nbytes != size:
        return False
    at, step = 0, 64
    while at < size:
        step = min(step, size - at)
        if read(ckpt, first, at, step) != read(ckpt, second, at, step):
            return False
        at, step = at + step, STEP
    return True


def equal_slices(ckpt: Checkpoint, name: str) -> dict[int, list[int]]:
    """Return slice of the first dimension → the later ones that hold the same bytes; slices of zeros are left out.

    The first 64 bytes are compared first.
    """
    tensor = ckpt.tensors[name]
    size = tensor.nbytes // tensor.shape[0]
    known: dict[bytes, list[int]] = {}
    copies: dict[int, list[int]] = {}
    for number in range(tensor.shape[0]):
        firsts = known.setdefault(read(ckpt, name, number * size, min(64, size)), [])
        twin = next(
            (first for first in firsts if _repeats(ckpt, name, first * size, (number - first) * size, size)), None
        )
        if twin is None:
            firsts.append(number)
        else:
            copies.setdefault(twin, []).append(number)
    return {first: found for first, found in copies.items() if any(read(ckpt, name, first * size, size))}


def _repeats(ckpt: Checkpoint, name: str, start: int, distance: int, length: int) -> bool:
    """Whether `length` bytes from `start` stand again `distance` further on; the beginning is compared first."""
    at, step = 0, min(64, length)
    while at < length:
        step = min(step, length - at)
        if read(ckpt, name, start + at, step) != read(ckpt, name, start + distance + at, step):
            return False
        at, step = at + step, STEP
    return True
