"""Describes where the elements of a tensor lie in files, as rectangles. Slicing, transposing and joining reads nothing.

Two stored forms of one weight differ only in where these rectangles lie: interleaved queries, keys and values, the halves of
a gated projection, experts stacked in one tensor, the shards of tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import msgspec
from msgspec import structs

from ckptcheck.values.tensor_part import packed_strides


class LayoutError(Exception):
    """A tensor does not have the shape that its layout requires. The message says what was expected."""


class FileChunk(msgspec.Struct, frozen=True):
    """A rectangle of a tensor that lies in one file."""

    # Index of its first element in the tensor.
    origin: tuple[int, ...]
    # Elements along each dimension.
    shape: tuple[int, ...]
    file: str
    # Bytes from the start of the file to its first element.
    offset: int
    # Bytes from one element to the next, for each dimension.
    strides: tuple[int, ...]


class TensorLayout(msgspec.Struct, frozen=True):
    """A stored tensor, or a part, transpose or join of stored tensors."""

    # As safetensors names it.
    dtype: str
    # Bytes of one element.
    itemsize: int
    shape: tuple[int, ...]
    # The rectangles that together hold every element.
    chunks: tuple[FileChunk, ...]

    @classmethod
    def contiguous(cls, dtype: str, itemsize: int, shape: tuple[int, ...], file: str, offset: int) -> TensorLayout:
        """Describe a C-contiguous tensor that starts at `offset` (bytes) of a file."""
        chunk = FileChunk((0,) * len(shape), shape, file, offset, packed_strides(shape, itemsize) if shape else ())
        return cls(dtype, itemsize, shape, (chunk,))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.itemsize

    @property
    def nbytes_in_files(self) -> int:
        """Bytes of its rectangles, where these are not all of it."""
        return sum(prod(chunk.shape) for chunk in self.chunks) * self.itemsize

    @property
    def files(self) -> frozenset[str]:
        """The files that hold its elements."""
        return frozenset(chunk.file for chunk in self.chunks)

    def cut(self, axis: int, begin: int, end: int, step: int = 1) -> TensorLayout:
        """Return the elements begin, begin + step, … before `end` along an axis. Raises LayoutError if they do not exist."""
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
                    FileChunk(
                        _with(chunk.origin, axis, (first - begin) // step),
                        _with(chunk.shape, axis, number),
                        chunk.file,
                        chunk.offset + (first - low) * stride,
                        _with(chunk.strides, axis, stride * step),
                    )
                )
        return structs.replace(self, shape=_with(self.shape, axis, -(-(end - begin) // step)), chunks=tuple(chunks))

    def unstack(self) -> list[TensorLayout]:
        """Split along the first dimension into one tensor per index. Raises LayoutError for a scalar."""
        if not self.shape:
            raise LayoutError("it is a scalar and should stack several tensors")
        parts: list[list[FileChunk]] = [[] for _ in range(self.shape[0])]
        for chunk in self.chunks:
            for number in range(chunk.shape[0]):
                offset = chunk.offset + number * chunk.strides[0]
                parts[chunk.origin[0] + number].append(
                    FileChunk(chunk.origin[1:], chunk.shape[1:], chunk.file, offset, chunk.strides[1:])
                )
        return [structs.replace(self, shape=self.shape[1:], chunks=tuple(part)) for part in parts]

    def transpose(self) -> TensorLayout:
        """Exchange rows and columns. Raises LayoutError if it is not a matrix."""
        if len(self.shape) != 2:
            raise LayoutError(f"it has the shape {list(self.shape)} and should be a matrix")
        chunks = (
            FileChunk(chunk.origin[::-1], chunk.shape[::-1], chunk.file, chunk.offset, chunk.strides[::-1])
            for chunk in self.chunks
        )
        return structs.replace(self, shape=self.shape[::-1], chunks=tuple(chunks))


def concatenate(layouts: Iterable[TensorLayout]) -> TensorLayout:
    """Concatenate tensors along the first dimension. Raises LayoutError if their dtypes or other dimensions differ."""
    parts = list(layouts)
    if not parts:
        raise LayoutError("there is nothing to join")
    chunks: list[FileChunk] = []
    rows = 0
    for part in parts:
        if not part.shape or (part.dtype, part.shape[1:]) != (parts[0].dtype, parts[0].shape[1:]):
            raise LayoutError(f"parts of {list(parts[0].shape)} and {list(part.shape)} do not fit each other")
        chunks += (
            structs.replace(chunk, origin=_with(chunk.origin, 0, chunk.origin[0] + rows)) for chunk in part.chunks
        )
        rows += part.shape[0]
    return structs.replace(parts[0], shape=(rows, *parts[0].shape[1:]), chunks=tuple(chunks))


def cut_flat_range(
    shape: tuple[int, ...], itemsize: int, begin: int, end: int, file: str, offset: int
) -> Iterator[FileChunk]:
    """Yield the rectangles that the elements [begin, end) of a row-major tensor make: part of a row, whole rows, part of a row.

    file, offset: where the range lies, its elements one after the other.

    >>> [(chunk.origin, chunk.shape) for chunk in cut_flat_range((4, 3), 4, 2, 10, "", 0)]
    [((0, 2), (1, 1)), ((1, 0), (2, 3)), ((3, 0), (1, 1))]
    """
    if begin >= end:
        return
    inner = prod(shape[1:])
    if len(shape) < 2 or (begin % inner == 0 and end % inner == 0):
        rows = (begin // inner, end // inner) if shape else (0, 1)
        extent = (rows[1] - rows[0], *shape[1:]) if shape else ()
        origin = (rows[0],) + (0,) * (len(shape) - 1) if shape else ()
        yield FileChunk(origin, extent, file, offset, packed_strides(extent, itemsize) if shape else ())
        return
    if begin % inner:
        row, until = begin // inner, min(end, (begin // inner + 1) * inner)
        for chunk in cut_flat_range(shape[1:], itemsize, begin - row * inner, until - row * inner, file, offset):
            yield _add_axis(chunk, row)
        yield from cut_flat_range(shape, itemsize, until, end, file, offset + (until - begin) * itemsize)
        return
    last = end // inner
    whole = last * inner
    yield from cut_flat_range(shape, itemsize, begin, whole, file, offset)
    for chunk in cut_flat_range(shape[1:], itemsize, 0, end - whole, file, offset + (whole - begin) * itemsize):
        yield _add_axis(chunk, last)


def _add_axis(chunk: FileChunk, row: int) -> FileChunk:
    """Return a rectangle of one row as one of the whole tensor."""
    step = chunk.shape[0] * chunk.strides[0]
    return structs.replace(chunk, origin=(row, *chunk.origin), shape=(1, *chunk.shape), strides=(step, *chunk.strides))


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])
