"""Maps the bytes of a stream to their tensors, and sums them for the shard digests block by block.

A stream is the row-major bytes of a stored tensor. It may hold several plain tensors (a fused projection), or a shard of one (the
tensor of one rank). Each is a rectangle: an offset, an extent and strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

if TYPE_CHECKING:
    import mmap

Sums = tuple[int, int]
"""The addition of bytes to the two sums of the shard digest of their tensor."""


def packed_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array."""
    return tuple(accumulate((*reversed(shape[1:]),), lambda total, length: total * length, initial=itemsize))[::-1]


class TensorPart(msgspec.Struct, frozen=True):
    """A rectangle of the bytes of a stream that belongs to a tensor."""

    tensor: str
    # Shape of the whole tensor.
    shape: tuple[int, ...]
    itemsize: int
    # Index of the rectangle's first element in the tensor.
    origin: tuple[int, ...]
    # Elements along each dimension.
    extent: tuple[int, ...]
    # Bytes from the start of the stream to the first element.
    offset: int
    # Bytes of the stream from one element to the next, for each dimension.
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.extent) * self.itemsize

    def is_all_of(self, nbytes: int) -> bool:
        """Whether it is all of a tensor, and all of a stream of `nbytes` bytes in their order."""
        is_packed = self.strides == packed_strides(self.shape, self.itemsize)
        return is_packed and self.extent == self.shape and self.offset == 0 and self.nbytes == nbytes

    def cut(self, begin: int, end: int) -> Iterator[TensorPart]:
        """Yield the rectangles of the elements that lie whole in the bytes [begin, end) of the stream.

        Every element lies in one piece, and a stride spans the smaller ones, as in any rectangle of a row-major tensor.
        """
        if 0 in self.extent:
            return
        reach = sum((length - 1) * stride for length, stride in zip(self.extent, self.strides, strict=True))
        last = self.offset + reach + self.itemsize
        if begin <= self.offset and last <= end:
            yield self
        elif last > begin and self.offset < end and reach:
            axis = max(
                (axis for axis, length in enumerate(self.extent) if length > 1), key=lambda axis: self.strides[axis]
            )
            stride = self.strides[axis]
            rest = last - self.offset - (self.extent[axis] - 1) * stride
            first = min(max(-(-(begin - self.offset) // stride), 0), self.extent[axis])
            beyond = max(min((end - self.offset - rest) // stride + 1, self.extent[axis]), first)
            if first < beyond:
                yield self._take(axis, first, beyond - first)
            # At most one row lies across each end of the bytes.
            for row in {first - 1, beyond}:
                if 0 <= row < self.extent[axis]:
                    yield from self._take(axis, row, 1).cut(begin, end)

    def _take(self, axis: int, first: int, number: int) -> TensorPart:
        return structs.replace(
            self,
            origin=(*self.origin[:axis], self.origin[axis] + first, *self.origin[axis + 1 :]),
            extent=(*self.extent[:axis], number, *self.extent[axis + 1 :]),
            offset=self.offset + first * self.strides[axis],
        )


def sum_part(part: TensorPart, raw: bytes | mmap.mmap, begin: int = 0) -> Sums:
    """Return the addition of a part to the sums of its tensor. raw: the bytes of the stream from byte `begin` on."""
    import numpy as np

    from ckptcheck.values.shard_digest import sum_shard

    values = np.ndarray(part.extent, f"<u{part.itemsize}", raw, part.offset - begin, part.strides)
    return sum_shard(values, part.origin, part.shape)


class PartSums:
    """Sums a stream whose blocks follow each other, and its parts."""

    def __init__(self, parts: Iterable[TensorPart], nbytes: int) -> None:
        """Name the parts of a stream of `nbytes` bytes."""
        self._parts = tuple(parts)
        self.are_whole = len(self._parts) < 2 and all(part.is_all_of(nbytes) for part in self._parts)
        """Whether the one part is the whole stream, or there is none: then `whole` is all that is summed."""
        self._at = 0
        self._carried = b""
        self._sums: dict[str, Sums] = {part.tensor: (0, 0) for part in self._parts}
        self.whole: Sums = (0, 0)

    @property
    def sums(self) -> dict[str, Sums]:
        """Tensor → the addition of its parts to its two sums."""
        return dict.fromkeys(self._sums, self.whole) if self.are_whole else self._sums

    def add(self, block: bytes) -> None:
        """Add the next bytes of the stream."""
        from ckptcheck.values.shard_digest import add_sums, sum_bytes

        self.whole = add_sums(self.whole, sum_bytes(block, self._at + len(self._carried)))
        # An element that continues in the next block waits for it.
        raw = self._carried + block if self._carried else block
        longest = 1 if self.are_whole else max((part.itemsize for part in self._parts), default=1)
        whole = len(raw) - len(raw) % longest
        for part in () if self.are_whole else self._parts:
            for box in part.cut(self._at, self._at + whole):
                self._sums[part.tensor] = add_sums(self._sums[part.tensor], sum_part(box, raw, self._at))
        self._at += whole
        self._carried = raw[whole:]
