"""Sums the elements of tensors for their shard digests, where they lie: nothing is joined, and each byte is read once.

Large files on a disk of this machine are mapped in worker processes, which is twice as fast as reading them: a file
that shrinks then kills a worker, and this process reads the worker's batch itself and reports the fault. Threads read
all other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckptcheck.checkpoint.source import Source
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile
from ckptcheck.text.formatting import join_truncated

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from ckptcheck.values.worker import Batch

SLAB = 1 << 23
"""Bytes of a slab: the unit of work of a thread or worker."""
MAX_PARTS = 100
"""The most parts in a batch: two batches have to fit into a pipe of 64 KiB."""

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
    slabs = [(key, slab) for key, layout in layouts.items() for slab in cut_slabs(layout)]
    nbytes = sum(layout.nbytes for layout in layouts.values())
    with TensorFiles(source) as files:
        if look_at is None and _are_worth_mapping(source, nbytes):
            yield from _sum_mapped(source, files, layouts, slabs, jobs)
        else:
            yield from _sum_read(files, layouts, slabs, jobs, look_at)
        if changed := files.list_changed():
            raise UnreadableFile(join_truncated(changed), "it changed while it was read")


def _sum_read(
    files: TensorFiles,
    layouts: Mapping[Key, TensorLayout],
    slabs: list[tuple[Key, FileChunk]],
    jobs: int,
    look_at: Callable[[Key, NDArray[Any], tuple[int, ...]], None] | None,
) -> Iterator[tuple[Key, SummedSlab]]:
    """Read the files in threads."""
    from ckptcheck.values.shard_digest import sum_shard

    def sum_slab(task: tuple[Key, FileChunk]) -> Sums:
        key, slab = task
        layout = layouts[key]
        values = files.read_rectangle(slab.file, slab.offset, slab.shape, slab.strides, layout.itemsize)
        if look_at is not None:
            look_at(key, values, slab.origin)
        return sum_shard(values, slab.origin, layout.shape)

    pool = ThreadPoolExecutor(jobs)
    try:
        for (key, slab), sums in zip(slabs, pool.map(sum_slab, slabs), strict=True):
            yield key, SummedSlab(slab.file, sums, prod(slab.shape) * layouts[key].itemsize)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _sum_mapped(
    source: Source,
    files: TensorFiles,
    layouts: Mapping[Key, TensorLayout],
    slabs: list[tuple[Key, FileChunk]],
    jobs: int,
) -> Iterator[tuple[Key, SummedSlab]]:
    """Let worker processes map the files; this process reads a batch over which a worker died."""
    from ckptcheck.values.worker_pool import WorkerPool

    slabs.sort(key=lambda task: (task[1].file, task[1].offset))
    pool = WorkerPool(jobs)
    try:
        for file in {slab.file: None for _, slab in slabs}:
            files.note_state(file)
        pool.submit(_cut_batches(source, layouts, slabs, jobs))
        for batch, stats in pool.iter_results():
            tasks = [slabs[int(part.tensor)] for part in batch.parts]
            if stats is None:
                yield from _sum_read(files, layouts, tasks, 1, None)
                continue
            for (key, slab), sums, part in zip(tasks, stats.sums, batch.parts, strict=True):
                yield key, SummedSlab(slab.file, sums, part.nbytes)
    finally:
        pool.close()


def _cut_batches(
    source: Source, layouts: Mapping[Key, TensorLayout], slabs: Iterable[tuple[Key, FileChunk]], jobs: int
) -> Iterator[Batch]:
    """Put slabs that follow each other in one file into batches. Their parts carry the number of the slab as their name."""
    from ckptcheck.values.scan_plan import BATCHES_PER_WORKER, MAX_BATCH_BYTES
    from ckptcheck.values.tensor_part import TensorPart
    from ckptcheck.values.worker import Batch

    total = sum(layout.nbytes for layout in layouts.values())
    most = min(MAX_BATCH_BYTES, max(SLAB, total // (BATCHES_PER_WORKER * jobs)))
    parts: list[TensorPart] = []
    file, nbytes = "", 0
    for number, (key, slab) in enumerate(slabs):
        layout = layouts[key]
        if parts and (slab.file != file or len(parts) == MAX_PARTS or nbytes >= most):
            yield Batch(file, source.files[file].path, source.files[file].size, [], parts)
            parts, nbytes = [], 0
        file = slab.file
        shape = (layout.shape, layout.itemsize, slab.origin, slab.shape, slab.offset, slab.strides)
        parts.append(TensorPart(str(number), *shape))
        nbytes += parts[-1].nbytes
    if parts:
        yield Batch(file, source.files[file].path, source.files[file].size, [], parts)


def _are_worth_mapping(source: Source, nbytes: int) -> bool:
    from ckptcheck.values.forked_worker import can_fork
    from ckptcheck.values.value_pass import MIN_BYTES_FOR_WORKERS, can_map

    # A process that cannot be forked takes as long to start as a gigabyte takes to be read.
    return nbytes >= MIN_BYTES_FOR_WORKERS * (1 if can_fork() else 8) and can_map(source)


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
