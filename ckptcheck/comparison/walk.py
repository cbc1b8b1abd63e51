"""Walks over pairs of tensors: cuts them into tasks, and has several threads compare what the files hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ckptcheck.bridge.area import Area, Chunk, packed_strides
from ckptcheck.comparison.equality import How, Seen, compare
from ckptcheck.comparison.reading import Files, Unreadable

STEP = 1 << 18
"""Bytes of each side that are read and compared at a time: both stay in the cache of a core."""
RUN = 1 << 25
"""Bytes in a task where both sides lie in the same order."""
BOX = 1 << 20
"""Elements in a task where they do not."""
TASKS = 256
"""Parts that are compared in one task, at most: thousands of small tensors go together."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle that both sides hold. pair: its number. run: both lie in one piece and in the same order."""

    pair: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    first: Chunk
    second: Chunk
    run: bool


@dataclass
class Outcome:
    """seen: one for each pair. unread: number of the pair → file and reason."""

    seen: list[Seen]
    unread: dict[int, tuple[str, str]] = field(default_factory=dict)


def walk(
    pairs: Sequence[tuple[Area, Area, How]],
    files: tuple[Files, Files],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Outcome:
    """Compare the elements of each pair of equal shape. progress: called with bytes of the first side done and in all."""
    outcome = Outcome([Seen() for _ in pairs])
    total, done = sum(first.nbytes for first, _, _ in pairs), 0
    local = threading.local()

    def work(task: list[Part]) -> list[tuple[int, Seen | Unreadable]]:
        if not hasattr(local, "buffers"):
            local.buffers = np.empty(STEP, np.uint8), np.empty(STEP, np.uint8)
        return [(part.pair, _compare(part, pairs[part.pair], files, local.buffers)) for part in task]

    pool = ThreadPoolExecutor(jobs)
    try:
        for task, found in _in_order(pool, work, _tasks(pairs), 2 * jobs):
            for number, seen in found:
                if isinstance(seen, Unreadable):
                    outcome.unread[number] = seen.file, seen.reason
                else:
                    outcome.seen[number].add(seen)
            done += sum(prod(part.shape) * pairs[part.pair][0].itemsize for part in task)
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # threads must not read from files that are closed
    return outcome


def _compare(
    part: Part,
    pair: tuple[Area, Area, How],
    files: tuple[Files, Files],
    buffers: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> Seen | Unreadable:
    first, second, how = pair
    try:
        if part.run:
            return _compare_run(part, first, second, how, files, buffers)
        arrays = [
            side.box(chunk.file, chunk.offset, part.shape, chunk.strides, area.itemsize)
            for side, chunk, area in zip(files, (part.first, part.second), (first, second), strict=True)
        ]
    except Unreadable as error:
        return error
    if how.is_bitwise and np.array_equal(arrays[0], arrays[1]):
        return Seen(prod(part.shape))
    return compare(arrays[0], arrays[1], how, part.origin)


def _compare_run(
    part: Part,
    first: Area,
    second: Area,
    how: How,
    files: tuple[Files, Files],
    buffers: tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> Seen:
    """Compare two runs step by step; words of eight bytes decide whether a step needs a closer look."""
    seen = Seen()
    elements = prod(part.shape)
    step = STEP // max(first.itemsize, second.itemsize)
    begin = int(np.ravel_multi_index(part.origin, first.shape)) if part.origin else 0
    for at in range(0, elements, step):
        number = min(step, elements - at)
        ours, theirs = buffers[0][: number * first.itemsize], buffers[1][: number * second.itemsize]
        files[0].fill(part.first.file, part.first.offset + at * first.itemsize, ours)
        files[1].fill(part.second.file, part.second.offset + at * second.itemsize, theirs)
        if how.is_bitwise:
            words = ours.size // 8 * 8
            same = np.array_equal(ours[:words].view(np.uint64), theirs[:words].view(np.uint64))
            if same and ours[words:].tobytes() == theirs[words:].tobytes():
                seen.elements += number
                continue
        found = compare(ours.view(f"<u{first.itemsize}"), theirs.view(f"<u{second.itemsize}"), how, (begin + at,))
        if found.first is not None:
            found.first = tuple(int(index) for index in np.unravel_index(found.first[0], first.shape))
        seen.add(found)
    return seen


def _tasks(pairs: Sequence[tuple[Area, Area, How]]) -> Iterator[list[Part]]:
    """Cut pairs into parts, and put these into tasks of about RUN bytes."""
    task: list[Part] = []
    size = 0
    for number, (first, second, _) in enumerate(pairs):
        for part in _parts(number, first, second):
            task.append(part)
            size += prod(part.shape) * first.itemsize
            if size >= RUN or len(task) == TASKS:
                yield task
                task, size = [], 0
    if task:
        yield task


def _parts(number: int, first: Area, second: Area) -> Iterator[Part]:
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
    number: int, origin: tuple[int, ...], shape: tuple[int, ...], chunks: tuple[Chunk, Chunk], first: Area, second: Area
) -> Iterator[Part]:
    """Cut a rectangle until each piece fits a task, along its longest side; runs along the first."""
    run = (
        all(
            chunk.strides == packed_strides(shape, area.itemsize)
            for chunk, area in zip(chunks, (first, second), strict=True)
        )
        and first.shape[1:] == shape[1:]
    )
    most = RUN // first.itemsize if run else BOX
    if prod(shape) <= most:
        yield Part(number, origin, shape, *chunks, run)
        return
    axis = 0 if run and shape[0] > 1 else max(range(len(shape)), key=lambda axis: shape[axis])
    half = -(-shape[axis] // 2)
    for begin, length in ((0, half), (half, shape[axis] - half)):
        at = tuple(value + begin * (other == axis) for other, value in enumerate(origin))
        sides = tuple(length if other == axis else value for other, value in enumerate(shape))
        moved = (_from(chunks[0], at, origin), _from(chunks[1], at, origin))
        yield from _pieces(number, at, sides, moved, first, second)


def _from(chunk: Chunk, origin: tuple[int, ...], base: tuple[int, ...] | None = None) -> Chunk:
    """Return a chunk from another element on; `base`: the element that its offset stands for."""
    start = chunk.origin if base is None else base
    ahead = sum((a - b) * stride for a, b, stride in zip(origin, start, chunk.strides, strict=True))
    return Chunk(chunk.origin, chunk.shape, chunk.file, chunk.offset + ahead, chunk.strides)


def _in_order(
    pool: ThreadPoolExecutor,
    work: Callable[[list[Part]], list[tuple[int, Seen | Unreadable]]],
    tasks: Iterable[list[Part]],
    ahead: int,
) -> Iterator[tuple[list[Part], list[tuple[int, Seen | Unreadable]]]]:
    """Yield tasks with their results, with so many under way at once and no more."""
    waiting: deque[tuple[list[Part], Future[list[tuple[int, Seen | Unreadable]]]]] = deque()
    for task in tasks:
        waiting.append((task, pool.submit(work, task)))
        if len(waiting) > ahead:
            done, future = waiting.popleft()
            yield done, future.result()
    while waiting:
        done, future = waiting.popleft()
        yield done, future.result()
