"""Compares pairs of tensors: cuts them into tasks, and a runner reads both sides and compares them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.equality import CompareResult, CompareSpec, compare_elements
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile, WorkOnPairs
from ckptcheck.runners.runner import Runner
from ckptcheck.values.tensor_part import packed_strides

STEP_BYTES = 1 << 18
"""Bytes of each side that are read and compared at a time: both stay in the cache of a core."""
REMOTE_STEP_BYTES = 1 << 23
"""The same where a side is not on this machine, and each step waits for the network."""
REMOTE_TASKS = 5
"""Tasks at a time where a side is not on this machine; each holds four times REMOTE_STEP_BYTES."""
TASK_BYTES = 1 << 25
"""Bytes in a task where both sides store the elements in the same order."""
TASK_ELEMENTS = 1 << 20
"""Elements in a task if the order differs."""
TASK_SLICES = 256
"""Slices in a task at most: thousands of small tensors share a task."""

Progress = Callable[[int, int], None]


class PairSlice(msgspec.Struct, frozen=True):
    """A rectangle of a pair of tensors that lies in one chunk on each side."""

    # Index of the pair.
    pair: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    first: FileChunk
    second: FileChunk
    # Both sides store it as one contiguous run, in the same order.
    run: bool


class PassResult(msgspec.Struct):
    """The result of comparing all pairs."""

    # One for each pair.
    results: list[CompareResult]
    # Index of the pair → file that could not be read, and the reason.
    unread: dict[int, tuple[str, str]] = msgspec.field(default_factory=dict)


class SliceResult(msgspec.Struct, array_like=True):
    """How a slice of a pair differs, or which file could not be read, and why."""

    pair: int
    result: CompareResult | None
    file: str = ""
    reason: str = ""


@dataclass
class SliceComparison(WorkOnPairs):
    """Compares some slices of pairs; `runners.runner.Work`."""

    pairs: Sequence[tuple[TensorLayout, TensorLayout, CompareSpec]]
    files: tuple[TensorFiles, TensorFiles]
    result_type = list[SliceResult]
    words = "comparison of {} with {}"
    remote_units = REMOTE_TASKS

    def __post_init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return SliceComparison, (self.pairs, self.files)

    def compute(self, unit: list[PairSlice]) -> list[SliceResult]:
        """Read both sides and compare them."""
        if not hasattr(self._local, "buffers"):
            step = REMOTE_STEP_BYTES if self.is_remote else STEP_BYTES
            self._local.buffers = np.empty(step, np.uint8), np.empty(step, np.uint8)
        return [self._compare_slice(part) for part in unit]

    def _compare_slice(self, part: PairSlice) -> SliceResult:
        first, second, how = self.pairs[part.pair]
        try:
            if part.run:
                result = _compare_run(part, first, second, how, self.files, self._local.buffers)
                return SliceResult(part.pair, result)
            arrays = [
                side.read_rectangle(chunk.file, chunk.offset, part.shape, chunk.strides, area.itemsize)
                for side, chunk, area in zip(self.files, (part.first, part.second), (first, second), strict=True)
            ]
        except UnreadableFile as error:
            return SliceResult(part.pair, None, error.file, error.reason)
        if how.is_bitwise and np.array_equal(arrays[0], arrays[1]):
            return SliceResult(part.pair, CompareResult(prod(part.shape)))
        return SliceResult(part.pair, compare_elements(arrays[0], arrays[1], how, part.origin))

    def describe(self, unit: list[PairSlice]) -> str:
        """Name the slices and their pairs."""
        return repr([(part, self.pairs[part.pair]) for part in unit])

    def weigh(self, unit: list[PairSlice]) -> int:
        """Return the bytes of the first side."""
        return sum(prod(part.shape) * self.pairs[part.pair][0].itemsize for part in unit)

    def find_nodes(self, unit: list[PairSlice]) -> frozenset[str]:
        """Return the nodes on whose disks the files lie."""
        return self.find_common_nodes({one.first.file for one in unit}, {one.second.file for one in unit})

    def fits(self, unit: list[PairSlice], result: list[SliceResult]) -> bool:
        """Whether there is one result for each slice, with no more differences than it has elements, and none outside."""
        return len(result) == len(unit) and all(map(self._fits_slice, unit, result))

    def _fits_slice(self, part: PairSlice, one: SliceResult) -> bool:
        if one.pair != part.pair or one.result is None:
            return one.pair == part.pair
        elements, found = prod(part.shape), one.result
        inside = found.first is None or (
            len(found.first) == len(part.origin)
            and all(
                begin <= index < begin + length
                for index, begin, length in zip(found.first, part.origin, part.shape, strict=True)
            )
        )
        return found.elements == elements and 0 <= found.not_finite <= found.different <= elements and inside

    def is_whole(self, result: list[SliceResult]) -> bool:
        """Whether all slices could be read."""
        return all(one.result is not None for one in result)


def compare_pairs(
    pairs: Sequence[tuple[TensorLayout, TensorLayout, CompareSpec]],
    files: tuple[TensorFiles, TensorFiles],
    *,
    runner: Runner,
    progress: Progress | None = None,
) -> PassResult:
    """Compare the elements of pairs of equal shape.

    Args:
        pairs: layouts of both sides, and how to compare them.
        files: of the first and of the second side.
        runner: runs the comparisons of slices.
        progress: called with the bytes of the first side that are done, and the total.
    """
    outcome = PassResult([CompareResult() for _ in pairs])
    total, done = sum(first.nbytes for first, _, _ in pairs), 0
    work = SliceComparison(pairs, files)
    for task, results in runner.run(work, list(_tasks(pairs))):
        for one in results:
            if one.result is None:
                outcome.unread[one.pair] = one.file, one.reason
            else:
                outcome.results[one.pair].add(one.result)
        done += work.weigh(task)
        if progress is not None:
            progress(done, total)
    return outcome


def _compare_run(
    part: PairSlice,
    first: TensorLayout,
    second: TensorLayout,
    how: CompareSpec,
    files: tuple[TensorFiles, TensorFiles],
    buffers: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> CompareResult:
    """Compare two contiguous runs step by step. A step whose bytes are equal needs no element-wise comparison."""
    result = CompareResult()
    elements = prod(part.shape)
    step = buffers[0].size // max(first.itemsize, second.itemsize)
    begin = int(np.ravel_multi_index(part.origin, first.shape)) if part.origin else 0
    for at in range(0, elements, step):
        number = min(step, elements - at)
        ours, theirs = buffers[0][: number * first.itemsize], buffers[1][: number * second.itemsize]
        files[0].read_into(part.first.file, part.first.offset + at * first.itemsize, ours)
        files[1].read_into(part.second.file, part.second.offset + at * second.itemsize, theirs)
        if how.is_bitwise:
            words = ours.size // 8 * 8
            same = np.array_equal(ours[:words].view(np.uint64), theirs[:words].view(np.uint64))
            if same and ours[words:].tobytes() == theirs[words:].tobytes():
                result.elements += number
                continue
        step_result = compare_elements(
            ours.view(f"<u{first.itemsize}"), theirs.view(f"<u{second.itemsize}"), how, (begin + at,)
        )
        if step_result.first is not None:
            step_result.first = tuple(int(index) for index in np.unravel_index(step_result.first[0], first.shape))
        result.add(step_result)
    return result


def _tasks(pairs: Sequence[tuple[TensorLayout, TensorLayout, CompareSpec]]) -> Iterator[list[PairSlice]]:
    """Cut pairs into slices and group these into tasks of about TASK_BYTES."""
    task: list[PairSlice] = []
    size = 0
    for number, (first, second, _) in enumerate(pairs):
        for part in _parts(number, first, second):
            task.append(part)
            size += prod(part.shape) * first.itemsize
            if size >= TASK_BYTES or len(task) == TASK_SLICES:
                yield task
                task, size = [], 0
    if task:
        yield task


def _parts(number: int, first: TensorLayout, second: TensorLayout) -> Iterator[PairSlice]:
    for ours in first.chunks:
        for theirs in second.chunks:
            origin = tuple(map(max, ours.origin, theirs.origin))
            ends = (
                min(a + n, b + m)
                for a, n, b, m in zip(ours.origin, ours.shape, theirs.origin, theirs.shape, strict=True)
            )
            shape = tuple(end - begin for begin, end in zip(origin, ends, strict=True))
            if all(length > 0 for length in shape):
                yield from _pieces(number, origin, shape, (_from(ours, origin), _from(theirs, origin)), first, second)


def _pieces(
    number: int,
    origin: tuple[int, ...],
    shape: tuple[int, ...],
    chunks: tuple[FileChunk, FileChunk],
    first: TensorLayout,
    second: TensorLayout,
) -> Iterator[PairSlice]:
    """Cut a rectangle along its longest side until each piece fits a task; contiguous runs along the first dimension."""
    run = (
        all(
            chunk.strides == packed_strides(shape, area.itemsize)
            for chunk, area in zip(chunks, (first, second), strict=True)
        )
        and first.shape[1:] == shape[1:]
    )
    most = TASK_BYTES // first.itemsize if run else TASK_ELEMENTS
    if prod(shape) <= most:
        yield PairSlice(number, origin, shape, *chunks, run)
        return
    axis = 0 if run and shape[0] > 1 else max(range(len(shape)), key=lambda axis: shape[axis])
    half = -(-shape[axis] // 2)
    for begin, length in ((0, half), (half, shape[axis] - half)):
        at = tuple(value + begin * (other == axis) for other, value in enumerate(origin))
        sides = tuple(length if other == axis else value for other, value in enumerate(shape))
        moved = (_from(chunks[0], at, origin), _from(chunks[1], at, origin))
        yield from _pieces(number, at, sides, moved, first, second)


def _from(chunk: FileChunk, origin: tuple[int, ...], base: tuple[int, ...] | None = None) -> FileChunk:
    """Return the chunk with the offset of another element. base: the element that its present offset belongs to."""
    start = chunk.origin if base is None else base
    ahead = sum((a - b) * stride for a, b, stride in zip(origin, start, chunk.strides, strict=True))
    return FileChunk(chunk.origin, chunk.shape, chunk.file, chunk.offset + ahead, chunk.strides)
