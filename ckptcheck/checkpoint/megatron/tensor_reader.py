"""Reads elements of a tensor from the archives that hold it, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.megatron.stubs import StoredTensor, load_persistent, stub_for
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item, itemsize, numpy_dtype
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive, open_archive
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 1 << 24
"""Bytes that are read at a time."""
ARCHIVES = 64
"""Archives kept open: directories only, no data."""
STEP = 1 << 22
"""Bytes of two chunks that are compared at a time."""
FIRST = 64
"""Bytes of a chunk that are compared first."""


def open_item_archive(source: Source, item: Item, folder: str) -> Archive:
    """Open the archive at an item. Raises UnreadableArchive, OSError."""
    name = f"{folder}/{item.file}" if folder else item.file
    if item.transformed:
        raise UnreadableArchive("its writer compressed it")
    if name not in source.files:
        raise UnreadableArchive(f"the file {item.file} does not exist")
    if item.begin + item.length > source.files[name].size:
        raise UnreadableArchive("the file ends before it")

    def read(start: int, length: int) -> bytes:
        return source.read(name, item.begin + start, max(0, min(length, item.length - start)))

    return open_archive(read, item.length)


class ItemArchives:
    """Opens the archives of a checkpoint's items and keeps some open. It can be pickled."""

    def __init__(self, source: Source, folder: str) -> None:
        """Describe the archives of a source. folder: the path in front of an item's file."""
        self.source, self.folder = source, folder
        self.open = lru_cache(ARCHIVES)(self._open)

    def __reduce__(self) -> tuple[type[ItemArchives], tuple[Source, str]]:
        return ItemArchives, (self.source, self.folder)

    def _open(self, item: Item) -> Archive:
        """Open the archive at an item. Raises UnreadableArchive, OSError."""
        return open_item_archive(self.source, item, self.folder)


class ChunkLocation:
    """The place of a chunk's elements: bytes [begin, begin + nbytes) of the file `name`, in C order if contiguous."""

    __slots__ = ("begin", "contiguous", "dtype", "name", "nbytes", "shape", "stride")

    def __init__(
        self,
        name: str,
        begin: int,
        nbytes: int,
        dtype: str,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        contiguous: bool,
    ) -> None:
        self.name, self.begin, self.nbytes, self.dtype = name, begin, nbytes, dtype
        self.shape, self.stride, self.contiguous = shape, stride, contiguous


def locate_chunk(
    source: Source, chunk: Chunk, dtype: str, folder: str, archive: Archive | None = None
) -> ChunkLocation:
    """Locate the bytes of a chunk.

    archive: the archive of its item, if it is open already. Raises UnreadableArchive if the item is no archive or does not hold
    what the table of contents declares, and OSError.
    """
    if chunk.item is None:
        raise UnreadableArchive("the checkpoint does not say where it lies")
    archive = archive or open_item_archive(source, chunk.item, folder)
    name = f"{folder}/{chunk.item.file}" if folder else chunk.item.file
    if chunk.record:  # a legacy file, whose data.pkl already gave the dtype and the shape
        record, skip, shape, contiguous = chunk.record, chunk.skip, chunk.sizes, True
        stride: tuple[int, ...] = ()
        stored_dtype = dtype
    else:
        tensor, _ = archive.describe(stub_for, load_persistent)
        if not isinstance(tensor, StoredTensor):
            raise UnreadableArchive("it holds no tensor")
        record, shape, stride, contiguous = tensor.record, tensor.shape, tensor.stride, tensor.is_contiguous
        skip, stored_dtype = tensor.skip + chunk.skip, tensor.dtype
    if record not in archive.records:
        raise UnreadableArchive("the record of its storage is missing")
    if stored_dtype != dtype:
        raise UnreadableArchive(f"it holds {stored_dtype}, and the table of contents says {dtype}")
    declared = chunk.elements if chunk.record else chunk.whole or chunk.elements
    if prod(shape) < declared or (contiguous and not chunk.record and prod(shape) != declared):
        raise UnreadableArchive(f"it holds {prod(shape):,} elements, and the table of contents says {declared:,}")
    if archive.big_endian and itemsize(dtype) > 1:
        raise UnreadableArchive("it was written on a big-endian machine")
    storage = archive.records[record]
    begin, nbytes = skip * itemsize(dtype), chunk.elements * itemsize(dtype)
    if begin + (nbytes if contiguous else 0) > storage.length:
        raise UnreadableArchive("its storage is shorter than the tensor")
    return ChunkLocation(name, chunk.item.begin + storage.begin + begin, nbytes, dtype, shape, stride, contiguous)


def read_tensor(archives: ItemArchives, tensor: GlobalTensor, slices: Sequence[slice] | None) -> NDArray[Any]:
    """Read a tensor, or the part that `slices` select; elements that no chunk holds are zero.

    Raises EvidenceError if a chunk cannot be read.
    """
    import numpy as np

    box = [location.indices(size)[:2] for location, size in zip(_whole(tensor, slices), tensor.shape, strict=True)]
    result = np.zeros([max(0, end - begin) for begin, end in box], numpy_dtype(tensor.dtype))
    for chunk in tensor.chunks:
        inner = [
            (max(begin, at), min(end, at + size))
            for (begin, end), at, size in zip(box, chunk.offsets, chunk.sizes, strict=True)
        ]
        if any(begin >= end for begin, end in inner) or not chunk.elements:
            continue
        try:
            archive = None if chunk.item is None else archives.open(chunk.item)
            location = locate_chunk(archives.source, chunk, tensor.dtype, archives.folder, archive)
            _copy(archives.source, location, chunk, inner, [begin for begin, _ in box], result)
        except (UnreadableArchive, OSError) as error:
            place = chunk.item.file if chunk.item else "nowhere"
            raise EvidenceError(f"could not read {tensor.key} in {place}: {error}") from error
    return result


def _whole(tensor: GlobalTensor, slices: Sequence[slice] | None) -> list[slice]:
    leading = list(slices or ())
    return leading + [slice(None)] * (len(tensor.shape) - len(leading))


def _copy(
    source: Source,
    location: ChunkLocation,
    chunk: Chunk,
    inner: list[tuple[int, int]],
    origin: list[int],
    result: NDArray[Any],
) -> None:
    """Copy the range [begin, end) of each axis from a chunk into the result, whose first element is at `origin`."""
    import numpy as np

    dtype = np.dtype(numpy_dtype(location.dtype))
    if not chunk.sizes or not location.contiguous:
        span = location.nbytes
        if not location.contiguous:
            span = (
                sum((size - 1) * step for size, step in zip(location.shape, location.stride, strict=True)) + 1
            ) * dtype.itemsize
        raw = np.frombuffer(_exactly(source, location.name, location.begin, span), dtype)
        if location.contiguous:
            part = raw.reshape(chunk.sizes)
        else:
            strides = [step * dtype.itemsize for step in location.stride]
            part = np.lib.stride_tricks.as_strided(raw, location.shape, strides, writeable=False).reshape(chunk.sizes)
        inside = tuple(slice(b - at, e - at) for (b, e), at in zip(inner, chunk.offsets, strict=True))
        result[tuple(slice(b - o, e - o) for (b, e), o in zip(inner, origin, strict=True))] = part[inside]
        return
    row = prod(chunk.sizes[1:]) * dtype.itemsize
    step = max(1, BLOCK // max(row, 1))
    first, last = inner[0]
    columns = tuple(slice(b - at, e - at) for (b, e), at in zip(inner[1:], chunk.offsets[1:], strict=True))
    goal = tuple(slice(b - o, e - o) for (b, e), o in zip(inner[1:], origin[1:], strict=True))
    for begin in range(first, last, step):
        end = min(begin + step, last)
        block = _exactly(source, location.name, location.begin + (begin - chunk.offsets[0]) * row, (end - begin) * row)
        part = np.frombuffer(block, dtype).reshape(end - begin, *chunk.sizes[1:])
        result[(slice(begin - origin[0], end - origin[0]), *goal)] = part[(slice(None), *columns)]


def _exactly(source: Source, name: str, start: int, length: int) -> bytes:
    raw = source.read(name, start, length)
    if len(raw) != length:
        raise OSError(f"{name} ends before it")
    return raw


def read_first_bytes(source: Source, place: ChunkLocation) -> bytes:
    """Return the first bytes of a chunk."""
    return source.read(place.name, place.begin, min(FIRST, place.nbytes))


def is_same_bytes(source: Source, first: ChunkLocation, second: ChunkLocation) -> bool:
    """Whether two chunks hold the same bytes; stops at the first difference. Raises OSError from reading."""
    if first.nbytes != second.nbytes or first.dtype != second.dtype:
        return False
    at, step = 0, FIRST
    while at < first.nbytes:
        step = min(step, first.nbytes - at)
        if source.read(first.name, first.begin + at, step) != source.read(second.name, second.begin + at, step):
            return False
        at, step = at + step, STEP
    return True


def is_constant(source: Source, place: ChunkLocation) -> bool:
    """Whether the first bytes of a chunk repeat one element."""
    raw = read_first_bytes(source, place)
    element = raw[: itemsize(place.dtype)]
    return raw == element * (len(raw) // max(len(element), 1))
