"""Compares bytes of tensors with each other, for the few that the statistics make suspects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ckptcheck.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")
STEP = 1 << 22
FIRST = 64
"""Bytes compared first: nearly all tensors differ in them."""


def read(ckpt: Checkpoint, name: str, start: int, length: int) -> bytes:
    """Read bytes of a tensor's data, from `start` within it."""
    shard = ckpt.shards[ckpt.holders[name]]
    return ckpt.source.read(shard.name, shard.data_start + shard.tensors[name].data_offsets[0] + start, length)


def same_pieces(ckpt: Checkpoint, first: tuple[str, int], second: tuple[str, int], length: int) -> bool:
    """Whether two pieces hold the same bytes: tensor and where it begins in there. Their beginnings are compared first.

    Raises Skip where a file has shrunk: of what is not there nothing is equal, and nothing differs.
    """
    (name, here), (other, there) = first, second
    at, step = 0, min(FIRST, length)
    while at < length:
        step = min(step, length - at)
        ours, theirs = read(ckpt, name, here + at, step), read(ckpt, other, there + at, step)
        if len(ours) < step or len(theirs) < step:
            raise Skip(f"{ckpt.holders[name if len(ours) < step else other]} shrank while it was being read")
        if ours != theirs:
            return False
        at, step = at + step, STEP
    return True


def same_bytes(ckpt: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors hold the same bytes. Raises as `same_pieces`."""
    size = ckpt.tensors[first].nbytes
    return ckpt.tensors[second].nbytes == size and same_pieces(ckpt, (first, 0), (second, 0), size)


def repeated(units: Iterable[T], begin: Callable[[T], Hashable], same: Callable[[T, T], bool]) -> Iterator[tuple[T, T]]:
    """Yield each unit that is an earlier one again, with the first such. begin: what equal ones have in common, and is cheap."""
    known: dict[Hashable, list[T]] = {}
    for unit in units:
        firsts = known.setdefault(begin(unit), [])
        twin = next((first for first in firsts if same(unit, first)), None)
        if twin is None:
            firsts.append(unit)
        else:
            yield unit, twin


def equal_slices(ckpt: Checkpoint, name: str) -> dict[int, list[int]]:
    """Return slice of the first dimension → the later ones that hold the same bytes; slices of zeros are left out."""
    tensor = ckpt.tensors[name]
    size = tensor.nbytes // tensor.shape[0]
    copies: dict[int, list[int]] = {}
    for number, twin in repeated(
        range(tensor.shape[0]),
        lambda number: read(ckpt, name, number * size, min(FIRST, size)),
        lambda one, other: same_pieces(ckpt, (name, one * size), (name, other * size), size),
    ):
        copies.setdefault(twin, []).append(number)
    return {first: found for first, found in copies.items() if any(read(ckpt, name, first * size, size))}
