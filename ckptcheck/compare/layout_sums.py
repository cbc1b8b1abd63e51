"""Sums the elements of tensors for their shard digests, where they lie: nothing is joined, and each byte is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckptcheck.checkpoint.source import Source
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.tensor_part import packed_strides

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

SLAB = 1 << 23
"""Bytes of a slab: the unit of work of a thread."""

Sums = tuple[int, int]
Key = TypeVar("Key")


class SummedSlab(NamedTuple):
    """The addition of one piece of a file to the sums of a tensor."""

    file: str
    sums: Sums
    nbytes: int


def iterate_sums(
    source: Source,
    layouts: Mapping[Key, TensorLayout],
    *,
    jobs: int,
    look_at: Callable[[Key, NDArray[Any], tuple[int, ...]], None] | None = None,
) -> Iterator[tuple[Key, SummedSlab]]:
    """Yield the addition of each piece of each tensor to the sums of its shard digest, in no particular order.

    look_at: threads call it with a tensor, a rectangle of it as unsigned integers, and the index of its first element.
    Raises UnreadableFile, also at the end where a file changed.
    """
    from ckptcheck.values.shard_digest import sum_shard

    def sum_slab(task: tuple[Key, FileChunk]) -> SummedSlab:
        key, slab = task
        layout = layouts[key]
        if look_at is None and (start := _find_start(slab, layout)) is not None:
            nbytes = prod(slab.shape) * layout.itemsize
            if (sums := files.sum_range(slab.file, slab.offset, nbytes, start)) is not None:
                return SummedSlab(slab.file, sums, nbytes)
        values = files.read_rectangle(slab.file, slab.offset, slab.shape, slab.strides, layout.itemsize)
        if look_at is not None:
            look_at(key, values, slab.origin)
        return SummedSlab(slab.file, sum_shard(values, slab.origin, layout.shape), values.nbytes)

    slabs = [(key, slab) for key, layout in layouts.items() for slab in cut_slabs(layout)]
    pool = ThreadPoolExecutor(jobs)
    with TensorFiles(source) as files:
        try:
            for (key, _), summed in zip(slabs, pool.map(sum_slab, slabs), strict=True):
                yield key, summed
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if changed := files.list_changed():
            raise UnreadableFile(join_truncated(changed), "it changed while it was read")


def _find_start(slab: FileChunk, layout: TensorLayout) -> int | None:
    """Return the offset in the tensor of the first byte of a slab that is consecutive bytes of it; None for another slab."""
    has_whole_rows = bool(slab.shape) and slab.shape[1:] == layout.shape[1:] and not any(slab.origin[1:])
    if not has_whole_rows or slab.strides != packed_strides(slab.shape, layout.itemsize):
        return None
    return slab.origin[0] * slab.strides[0]


def cut_slabs(layout: TensorLayout) -> Iterator[FileChunk]:
    """Cut the rectangles of a tensor along their first dimension, into slabs of about SLAB bytes."""
    for chunk in layout.chunks:
        if not prod(chunk.shape):
            continue
        rows = chunk.shape[0] if chunk.shape else 1
        step = max(1, SLAB * rows // (prod(chunk.shape) * layout.itemsize))
        if step >= rows:
            yield chunk
            continue
        for row in range(0, rows, step):
            yield FileChunk(
                (chunk.origin[0] + row, *chunk.origin[1:]),
                (min(step, rows - row), *chunk.shape[1:]),
                chunk.file,
                chunk.offset + row * chunk.strides[0],
                chunk.strides,
            )


def find_unlike_copies(
    whole: Mapping[str, TensorLayout],
    copy: Mapping[str, TensorLayout],
    sums: Mapping[str, Mapping[tuple[str, str], Sums]],
    kinds: tuple[str, str],
) -> dict[tuple[str, str], list[str]]:
    """Return (file, the file that it should copy) → the tensors whose parts differ between the two.

    On a mesh that replicates (HSDP), the file of each rank has its own copy.

    whole: name → tensor, joined from the parts of the ranks that come first. copy: the same for the ranks that hold
    copies of these parts. sums: file → its addition to the sums of each tensor, by (kind, name). kinds: the kinds of
    `whole` and `copy` in `sums`.
    """
    unlike: dict[tuple[str, str], list[str]] = {}
    for name, layout in copy.items():
        owners = {chunk.origin: chunk.file for chunk in whole[name].chunks}
        for file, owner in sorted({(chunk.file, owners[chunk.origin]) for chunk in layout.chunks}):
            held = [sums.get(at, {}).get((kind, name), (0, 0)) for at, kind in ((owner, kinds[0]), (file, kinds[1]))]
            if held[0] != held[1]:
                unlike.setdefault((file, owner), []).append(name)
    return unlike
