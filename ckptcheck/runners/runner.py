"""The protocols of work in units and of its runners, and the runner of this machine.

A pass over all values, all digests or all pairs is a list of independent units. The caller gets each unit with its result, in
order, and joins the results; the machine that computed them makes no difference. A node of a cluster and a folder of parts may hold
anything, so a result of another machine that does not fit its unit is refused.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import msgspec

U = TypeVar("U")
R = TypeVar("R")
U_contra = TypeVar("U_contra", contravariant=True)


GROUP_BYTES, GROUP_UNITS = 1 << 18, 64
"""Most bytes and units of a group of small units, which one thread computes in one go."""
MOST_BYTES, MOST_TIMES = 1 << 22, 16
"""Most bytes of a result: a base, and MOST_TIMES for each byte of its unit. Decoded, it takes many times as much memory."""


class Work(Protocol[U_contra, R]):
    """Work on units. It can be pickled, with its source."""

    @property
    def name(self) -> str:
        """The name of the work, with its target: ``values of ./model``."""
        ...

    @property
    def result_type(self) -> Any:
        """The type of a result, which msgspec can write and read."""
        ...

    @property
    def remote_jobs(self) -> int:
        """How many units may be computed at a time if their bytes come over the network; 0 if they are on this machine."""
        ...

    def compute(self, unit: U_contra) -> R:
        """Compute the result of a unit. Note a read error in the result; raise nothing."""
        ...

    def describe(self, unit: U_contra) -> str:
        """Return a text that identifies the unit: the same on every machine, and unique within the work."""
        ...

    def weigh(self, unit: U_contra) -> int:
        """Return the bytes that a unit reads."""
        ...

    def find_nodes(self, unit: U_contra) -> frozenset[str]:
        """Return the nodes of the Ray cluster on whose disks the files of a unit lie; empty if any node can read them."""
        ...

    def list_objects(self) -> Mapping[str, str]:
        """Map each file to a text that changes when it is replaced: its size, and its ETag or the time of its last change."""
        ...

    def fits(self, unit: U_contra, result: R) -> bool:
        """Whether a result of the right type fits this unit, because another machine may answer with anything."""
        ...

    def is_whole(self, result: R) -> bool:
        """Whether everything that the result needs could be read."""
        ...


class Runner(Protocol):
    """Runs work."""

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result, in order. Raises EvidenceError if results are unavailable."""
        ...


class Local:
    """Runs work in threads of this process."""

    def __init__(self, jobs: int | None = None, *, waits: bool = False) -> None:
        """Choose how the threads run.

        Args:
            jobs: number of threads; None: the number of cores, more if bytes come over the network.
            waits: at an early end, wait for the threads. Without it, a slow disk does not delay Ctrl-C.
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
    """Group small units, because handing one to a thread takes as long as reading some kilobytes."""
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
    """Yield each unit with its result, in order. At any time, a few more units than threads have begun."""
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


class MalformedResult(Exception):
    """An answer from another machine is no result of this work; the message is a clause that says why."""


def decode_results(work: Work[U, R], units: Sequence[U], results: Any) -> Iterator[tuple[U, R]]:
    """Yield each unit with its result, in order. results: the results of all units as MessagePack. Raises MalformedResult."""
    if not isinstance(results, list) or len(results) != len(units):
        raise MalformedResult("there is not one result for each piece of the work")
    decoder = msgspec.msgpack.Decoder(work.result_type)
    for unit, content in zip(units, results, strict=True):
        if isinstance(content, bytes) and len(content) > MOST_BYTES + MOST_TIMES * work.weigh(unit):
            raise MalformedResult(f"a result has {len(content):,} bytes, more than its piece of the work")
        try:
            result: R = decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise MalformedResult(str(error)) from error
        if not work.fits(unit, result):
            raise MalformedResult("a result does not fit its piece of the work")
        yield unit, result
