"""Whether two chunks hold the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.megatron.reading import Located

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

STEP = 1 << 22
FIRST = 64


def beginning(run: Megatron, place: Located) -> bytes:
    """Return the first bytes of a chunk."""
    return run.source.read(place.name, place.begin, min(FIRST, place.nbytes))


def same(run: Megatron, first: Located, second: Located) -> bool:
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


def is_constant(run: Megatron, place: Located) -> bool:
    """Whether the beginning of a chunk is one element again and again."""
    from ckptcheck.checkpoint.megatron.tensor import width

    raw = beginning(run, place)
    element = raw[: width(place.dtype)]
    return raw == element * (len(raw) // max(len(element), 1))
