"""Compares the bytes of tensors with each other, for the few whose statistics are equal."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import run_in_threads
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")
R = TypeVar("R")
STEP_BYTES = 1 << 22
"""Bytes compared at a time, after the first."""
PREFIX_BYTES = 64
"""Bytes compared first: nearly all tensors that differ do so within them."""
REMOTE_PIECES = 32
"""Pieces that are read at a time if each is a request: the values of a model have thousands of them."""


def read_tensor_bytes(ckpt: Checkpoint, name: str, start: int, length: int) -> bytes:
    """Read `length` bytes of a tensor's data, from byte `start` of the tensor, unless the value pass kept them.

    It ends with the tensor. Raises Skip if the file has shrunk, OSError if reading fails.
    """
    length = min(length, ckpt.tensors[name].nbytes - start)
    kept = ckpt.values_read.kept.get(name) if ckpt.values_read is not None else None
    if kept is not None and (raw := kept.find_span(start, length)) is not None:
        return raw
    shard = ckpt.shards[ckpt.tensor_to_file[name]]
    raw = ckpt.source.read(shard.name, shard.locate(name) + start, length)
    if len(raw) < length:
        raise Skip(f"{shard.name} shrank while it was being read")
    return raw


def read_patterns(ckpt: Checkpoint, name: str, start: int, length: int) -> NDArray[Any]:
    """Read bytes as `read_tensor_bytes` does, and return them as unsigned integers, one for each element."""
    import numpy as np

    return np.frombuffer(read_tensor_bytes(ckpt, name, start, length), FORMATS[ckpt.tensors[name].dtype].unsigned)


def require_sampling(ckpt: Checkpoint, what: str = "matrices") -> None:
    """Raise Skip if pieces of tensors are not read again."""
    if not ckpt.can_sample:
        raise Skip(f"{what} are read again only on disk, and in an object store with --values")


def is_cleared(ckpt: Checkpoint, name: str, flags: int) -> bool:
    """Whether the value pass looked at a matrix and all of these flags of `first_looks` hold."""
    return ckpt.values.looks.get(name, 0) & flags == flags


def map_pieces(ckpt: Checkpoint, read: Callable[[T], R], units: Sequence[T]) -> Iterator[R]:
    """Call a function that reads pieces of tensors for each unit, and yield its results in order.

    In an object store each piece costs a round trip, so several units are read at a time. On disk a unit is read when
    the caller asks for its result.
    """
    if ckpt.source.local is not None:
        yield from map(read, units)
    else:
        yield from (result for _, result in run_in_threads(read, units, REMOTE_PIECES))


def have_equal_bytes(ckpt: Checkpoint, first: tuple[str, int], second: tuple[str, int], length: int) -> bool:
    """Whether two pieces of `length` bytes are equal. A piece is (tensor, its first byte within the tensor).

    Raises Skip if a file has shrunk: bytes that are gone are neither equal nor different.
    """
    (name, name_start), (other, other_start) = first, second
    offset, step = 0, min(PREFIX_BYTES, length)
    while offset < length:
        step = min(step, length - offset)
        ours = read_tensor_bytes(ckpt, name, name_start + offset, step)
        if ours != read_tensor_bytes(ckpt, other, other_start + offset, step):
            return False
        offset, step = offset + step, STEP_BYTES
    return True


def are_equal_tensors(ckpt: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors hold the same bytes. Raises Skip as `have_equal_bytes` does."""
    size = ckpt.tensors[first].nbytes
    return ckpt.tensors[second].nbytes == size and have_equal_bytes(ckpt, (first, 0), (second, 0), size)


def iter_repeats(
    units: Iterable[T], prefixes: Iterable[Hashable], are_equal: Callable[[T, T], bool]
) -> Iterator[tuple[T, T]]:
    """Yield each unit that repeats an earlier one, with the first unit that it repeats.

    prefixes: a cheap value of each unit; equal units have equal ones, so only units with the same prefix are compared.
    """
    originals: dict[Hashable, list[T]] = {}
    for unit, prefix in zip(units, prefixes, strict=True):
        candidates = originals.setdefault(prefix, [])
        original = next((candidate for candidate in candidates if are_equal(unit, candidate)), None)
        if original is None:
            candidates.append(unit)
        else:
            yield unit, original


def find_equal_slices(ckpt: Checkpoint, name: str) -> dict[int, list[int]]:
    """Return slice of the first dimension → the later slices that hold the same bytes; slices of zeros are left out."""
    tensor = ckpt.tensors[name]
    size = tensor.nbytes // tensor.shape[0]
    copies: dict[int, list[int]] = {}
    for number, twin in iter_repeats(
        range(tensor.shape[0]),
        map_pieces(
            ckpt, lambda at: read_tensor_bytes(ckpt, name, at * size, min(PREFIX_BYTES, size)), range(tensor.shape[0])
        ),
        lambda one, other: have_equal_bytes(ckpt, (name, one * size), (name, other * size), size),
    ):
        copies.setdefault(twin, []).append(number)
    return {first: later for first, later in copies.items() if any(read_tensor_bytes(ckpt, name, first * size, size))}
