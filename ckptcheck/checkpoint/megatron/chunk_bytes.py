"""Reads and compares the bytes of chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.megatron.tensor_reader import ChunkLocation

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

STEP = 1 << 22
FIRST = 64


def read_first_bytes(run: Megatron, place: ChunkLocation) -> bytes:
    """Return the first bytes of a chunk."""
    return run.source.read(place.name, place.begin, min(FIRST, place.nbytes))


def is_same_bytes(run: Megatron, first: ChunkLocation, second: ChunkLocation) -> bool:
    """Whether two chunks hold the same bytes; stops at the first difference. Raises OSError from reading."""
    if first.nbytes != second.nbytes or first.dtype != second.dtype:
        return False
    at, step = 0, FIRST
    while at < first.nbytes:
        step = min(step, first.nbytes - at)
        if run.source.read(first.name, first.begin + at, step) != run.source.read(second.name, second.begin + at, step):
            return False
        at, step = at + step, STEP
    return True


def is_constant(run: Megatron, place: ChunkLocation) -> bool:
    """Whether the first bytes of a chunk repeat one element."""
    from ckptcheck.checkpoint.megatron.tensor import itemsize

    raw = read_first_bytes(run, place)
    element = raw[: itemsize(place.dtype)]
    return raw == element * (len(raw) // max(len(element), 1))
