"""A tensor as rectangles in files, so that a part, a transpose or a join of tensors is described and nothing is read.

Everything that separates two layouts of one weight is a matter of where its rectangles lie: the interleaving of queries, keys
and values, halves of a gated projection, experts that share a tensor, the parts that the ranks of a tensor-parallel run hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod


class LayoutError(Exception):
    """A tensor has not the shape that its layout says; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangle. origin: where it begins in the tensor. offset: its first element in the file. strides, offset: in bytes."""

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    strides: tuple[int, ...]


def packed_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of an array whose elements follow each other, the last dimension fastest."""
    return tuple(accumulate((*reversed(shape[1:]),), lambda total, length: total * length, initial=itemsize))[::-1]


@dataclass(frozen=True, slots=True)
class Area:
    """A tensor, or what a layout makes of one. dtype: as safetensors names it; itemsize in bytes."""

    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @classmethod
    def whole(cls, dtype: str, itemsize: int, shape: tuple[int, ...], file: str, offset: int) -> Area:
        """Describe a tensor that lies in one piece."""
        chunk = Chunk((0,) * len(shape), shape, file, offset, packed_strides(shape, itemsize) if shape else ())
        return cls(dtype, itemsize, shape, (chunk,))

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.itemsize

    def cut(self, axis: int, begin: int, end: int, step: int = 1) -> Area:
        """Return the elements begin, begin + step, … before `end` along an axis. Raises LayoutError where there is no such part."""
        if axis >= len(self.shape) or not 0 <= begin <= end <= self.shape[axis]:
            raise LayoutError(f"it has the shape {list(self.shape)}, without {begin} to {end} in dimension {axis}")
        chunks = []
        for chunk in self.chunks:
            low = chunk.origin[axis]
            first = max(begin, low)
            first += -(first - begin) % step
            last = min(end, low + chunk.shape[axis])
            if first < last:
                number = -(-(last - first) // step)
                stride = chunk.strides[axis]
                chunks.append(
                    Chunk(
                        _with(chunk.origin, axis, (first - begin) // step),
                        _with(chunk.shape, axis, number),
                        chunk.file,
                        chunk.offset + (first - low) * stride,
                        _with(chunk.strides, axis, stride * step),
                    )
                )
        return replace(self, shape=_with(self.shape, axis, -(-(end - begin) // step)), chunks=tuple(chunks))

    def unstacked(self) -> list[Area]:
        """Take the first dimension apart: one tensor for each of its indices. Raises LayoutError where there is none."""
        if not self.shape:
            raise LayoutError("it is a single number, and should be several tensors in one")
        parts: list[list[Chunk]] = [[] for _ in range(self.shape[0])]
        for chunk in self.chunks:
            for number in range(chunk.shape[0]):
                offset = chunk.offset + number * chunk.strides[0]
                parts[chunk.origin[0] + number].append(
                    Chunk(chunk.origin[1:], chunk.shape[1:], chunk.file, offset, chunk.strides[1:])
                )
        return [replace(self, shape=self.shape[1:], chunks=tuple(part)) for part in parts]

    def transposed(self) -> Area:
        """Exchange rows and columns. Raises LayoutError where it is no matrix."""
        if len(self.shape) != 2:
            raise LayoutError(f"it has the shape {list(self.shape)}, and should be a matrix")
        chunks = (
            Chunk(chunk.origin[::-1], chunk.shape[::-1], chunk.file, chunk.offset, chunk.strides[::-1])
            for chunk in self.chunks
        )
        return replace(self, shape=self.shape[::-1], chunks=tuple(chunks))


def joined(areas: Iterable[Area]) -> Area:
    """Put tensors under each other along the first dimension. Raises LayoutError where their dtypes or widths differ."""
    parts = list(areas)
    if not parts:
        raise LayoutError("there is nothing to join")
    chunks: list[Chunk] = []
    rows = 0
    for part in parts:
        if not part.shape or (part.dtype, part.shape[1:]) != (parts[0].dtype, parts[0].shape[1:]):
            raise LayoutError(f"parts of {list(parts[0].shape)} and {list(part.shape)} do not fit each other")
        chunks += (replace(chunk, origin=_with(chunk.origin, 0, chunk.origin[0] + rows)) for chunk in part.chunks)
        rows += part.shape[0]
    return replace(parts[0], shape=(rows, *parts[0].shape[1:]), chunks=tuple(chunks))


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
