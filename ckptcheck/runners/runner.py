"""The protocols of work that is cut into units and of what runs it, and the runner of this machine.

A pass over all values, all digests or all pairs is a list of units that need nothing of each other. Whoever asks for the pass gets
each unit with its result, in order, and joins the results; where they were computed makes no difference.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

U = TypeVar("U")
R = TypeVar("R")
U_contra = TypeVar("U_contra", contravariant=True)


GROUP_BYTES, GROUP_UNITS = 1 << 18, 64
"""Bytes and number of the small units that one thread computes before it takes others."""


class Work(Protocol[U_contra, R]):
    """What is computed of each unit. It can be sent to another process, with what it reads from."""

    @property
    def name(self) -> str:
        """What is computed of which target: ``values of ./model``."""
        ...

    @property
    def result_type(self) -> Any:
        """The type of a result, which msgspec can write and read."""
        ...

    @property
    def remote_jobs(self) -> int:
        """How many units may be computed at a time where their bytes come over the network; 0 where they are on this machine."""
        ...

    def compute(self, unit: U_contra) -> R:
        """Compute the result of a unit. What cannot be read is said in the result; nothing is raised for it."""
        ...

    def describe(self, unit: U_contra) -> str:
        """Say which unit this is: the same on every machine, and for no other unit of the work."""
        ...

    def weigh(self, unit: U_contra) -> int:
        """Return the bytes that a unit reads."""
        ...

    def find_nodes(self, unit: U_contra) -> frozenset[str]:
        """Return the nodes of the Ray cluster on whose disks the files of a unit lie; empty where any node can read them."""
        ...

    def list_objects(self) -> Mapping[str, str]:
        """Map each file to what changes when it is replaced: its size, and its ETag or the time of its last change."""
        ...

    def fits(self, unit: U_contra, result: R) -> bool:
        """Whether a result that has its type can be one of this unit: another machine may answer with anything."""
        ...

    def is_whole(self, result: R) -> bool:
        """Whether everything could be read that the result needs."""
        ...


class Runner(Protocol):
    """Runs work."""

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result, in order. Raises EvidenceError where results cannot be had."""
        ...


class Local:
    """Runs work in threads of this process."""

    def __init__(self, jobs: int | None = None, *, waits: bool = False) -> None:
        """Choose how the threads run.

        Args:
            jobs: how many there are; None: as many as there are cores, more where bytes come over the network.
            waits: at an early end, wait for what they are doing. Without that a slow disk delays no Ctrl-C.
        """
        self._jobs, self._waits = jobs, waits

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result, in order."""
        jobs = self._jobs or work.remote_jobs or os.cpu_count() or 1
        if work.remote_jobs:  # each unit waits for the network
            yield from run_in_threads(work.compute, units, jobs, waits=self._waits)
            return

        def compute_group(group: Sequence[U]) -> list[R]:
            return [work.compute(unit) for unit in group]

        for group, results in run_in_threads(compute_group, list(_group_small(work, units)), jobs, waits=self._waits):
            yield from zip(group, results, strict=True)


def _group_small(work: Work[U, R], units: Sequence[U]) -> Iterator[list[U]]:
    """Put small units together: handing one to a thread takes as long as reading some kilobytes."""
    group: list[U] = []
    weight = 0
    for unit in units:
        group.append(unit)
        weight += work.weigh(unit)
        if weight >= GROUP_BYTES or len(group) >= GROUP_UNITS:
            yield group
            group, weight = [], 0
    if group:
        yield group


class _Waiting(Generic[U, R]):
    def __init__(self, unit: U, future: Future[R]) -> None:
        self.unit, self.future = unit, future


def run_in_threads(
    compute: Callable[[U], R], units: Sequence[U], jobs: int, *, waits: bool = False
) -> Iterator[tuple[U, R]]:
    """Yield each unit with its result, in order. A few units more than there are threads are begun and not yet yielded."""
    pool = ThreadPoolExecutor(jobs)
    waiting: deque[_Waiting[U, R]] = deque()
    try:
        for unit in units:
            waiting.append(_Waiting(unit, pool.submit(compute, unit)))
            if len(waiting) > 2 * jobs:
                first = waiting.popleft()
                yield first.unit, first.future.result()
        while waiting:
            first = waiting.popleft()
            yield first.unit, first.future.result()
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)
