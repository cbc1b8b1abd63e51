"""A pool of worker processes: each gets another batch when it has finished one; a worker that dies is replaced."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import IO

import msgspec

from ckptcheck.runners.child_python import start_python
from ckptcheck.values.forked_worker import ForkedWorker, can_fork
from ckptcheck.values.worker import Batch, BatchStats, read_message, write_message

Worker = subprocess.Popen[bytes] | ForkedWorker

QUEUE_DEPTH = 2
"""Batches assigned to a worker at a time: the one that it scans, and the next."""
PREFILL_ROUNDS = 8
"""Batches assigned to a worker by `submit`, before the parent reads results; fewer if they do not fit into its pipe."""
PIPE_BYTES = 1 << 15
"""Bytes of batches that fit into a pipe with room to spare."""


class WorkerPool:
    """Processes that scan batches side by side. Whoever creates a pool closes it."""

    def __init__(self, number: int) -> None:
        """Start `number` workers. Raises OSError if one cannot be started: then none is left."""
        self._selector = selectors.DefaultSelector()
        self._busy: dict[Worker, deque[Batch]] = {}
        self._idle: list[Worker] = []
        self._waiting: deque[Batch] | None = None
        try:
            for _ in range(number):
                self._idle.append(self._start())
        except OSError:
            self.close()
            raise

    def kill(self) -> None:
        """Kill the workers and do not wait for their end: the system takes time to unmap a large file."""
        for worker in (*self._idle, *self._busy):
            worker.kill()

    def close(self) -> None:
        """Kill the workers and wait until they are gone. A second call does nothing."""
        self.kill()
        for worker in (*self._idle, *self._busy):
            self._reap(worker)
        self._idle, self._busy = [], {}
        self._selector.close()

    def submit(self, batches: Iterable[Batch]) -> None:
        """Take the batches to scan, and assign a first share to each worker. A second call does nothing."""
        if self._waiting is not None:
            return
        self._waiting = deque(batches)
        room = dict.fromkeys(self._idle, PIPE_BYTES)
        for worker in [*self._idle] * PREFILL_ROUNDS:
            if self._waiting and (nbytes := len(msgspec.msgpack.encode(self._waiting[0]))) <= room[worker]:
                room[worker] -= nbytes
                self._assign(worker, self._waiting.popleft())

    def iter_results(self, lost_shards: Container[str] = ()) -> Iterator[tuple[Batch, BatchStats | None]]:
        """Yield each batch with its statistics as soon as they arrive, or with None if the worker died over it.

        Each worker has its next batch waiting, so that it never waits for this process. Waiting batches fit into the
        worker's pipe: otherwise worker and parent could each wait for the other to read.

        lost_shards: Shards to skip. The caller may add to them between results.
        """
        decoder = msgspec.msgpack.Decoder(BatchStats)
        waiting = self._waiting if self._waiting is not None else deque()
        while True:
            for worker in [*self._idle, *self._busy] * QUEUE_DEPTH:
                while waiting and waiting[0].shard in lost_shards:
                    waiting.popleft()
                if waiting and len(self._busy.get(worker, ())) < QUEUE_DEPTH:
                    self._assign(worker, waiting.popleft())
            if not self._busy:
                return
            for key, _ in self._selector.select():
                worker = key.data
                batch = self._busy[worker].popleft()
                message = read_message(worker.stdout)
                if message is None:
                    waiting.extendleft(self._busy[worker])
                    self._busy[worker].clear()
                if not self._busy[worker]:
                    del self._busy[worker]
                    self._selector.unregister(worker.stdout)
                    self._idle.append(worker)
                if message is None:
                    self._idle.remove(worker)
                    self._reap(worker)
                    self._idle.append(self._start())
                yield batch, None if message is None else decoder.decode(message)

    def _assign(self, worker: Worker, batch: Batch) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        if worker not in self._busy:
            self._idle.remove(worker)
            self._busy[worker] = deque()
            self._selector.register(worker.stdout, selectors.EVENT_READ, worker)
        self._busy[worker].append(batch)
        # A worker that died while idle breaks the pipe. Reading its stdout reports that at once.
        with contextlib.suppress(BrokenPipeError):
            write_message(worker.stdin, msgspec.msgpack.encode(batch))

    def _start(self) -> Worker:
        if can_fork():
            return ForkedWorker([stream for worker in (*self._idle, *self._busy) for stream in _streams(worker)])
        # bufsize: the selector does not see bytes that Python has read ahead.
        # start_new_session: Ctrl-C goes to the parent, which kills the workers.
        return start_python(
            ["-c", "from ckptcheck.values.worker import main; main()"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @staticmethod
    def _reap(worker: Worker) -> None:
        worker.kill()
        for stream in _streams(worker):
            with contextlib.suppress(OSError):
                stream.close()
        worker.wait()


def _streams(worker: Worker) -> list[IO[bytes]]:
    return [stream for stream in (worker.stdin, worker.stdout) if stream is not None]
