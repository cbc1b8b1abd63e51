"""Worker processes: each is given a batch, and another when it has answered; one that dies is replaced."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from ckptcheck.values.forked import Forked, may_fork
from ckptcheck.values.look import Seen
from ckptcheck.values.worker import Batch, receive, send

START = "import sys; sys.path.insert(0, {root!r}); from ckptcheck.values.worker import main; main()"


Worker = subprocess.Popen[bytes] | Forked

AHEAD = 2
"""Batches given to a process: one to look at and the next."""
FIRST = 8
"""Batches given to it before it is listened to, while this process does something else; only while they fit into its pipe."""
PIPE = 1 << 15
"""Bytes of batches that fit into a pipe with room to spare."""


class Crew:
    """Processes that look at batches side by side. Whoever has one closes it."""

    def __init__(self, number: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._busy: dict[Worker, deque[Batch]] = {}
        self._idle: list[Worker] = []
        self._waiting: deque[Batch] | None = None
        for _ in range(number):
            self._idle.append(self._start())

    def dismiss(self) -> None:
        """Kill the processes, and do not wait: the system takes time to take a map apart."""
        for process in (*self._idle, *self._busy):
            process.kill()

    def close(self) -> None:
        """Kill the processes, and wait until they are gone; may be called twice."""
        self.dismiss()
        for process in (*self._idle, *self._busy):
            self._bury(process)
        self._idle, self._busy = [], {}
        self._selector.close()

    def begin(self, batches: Iterable[Batch]) -> None:
        """Say what there is to do, and give each process a first share of it. A second call changes nothing."""
        if self._waiting is not None:
            return
        self._waiting = deque(batches)
        room = dict.fromkeys(self._idle, PIPE)
        for process in [*self._idle] * FIRST:
            if self._waiting and (nbytes := len(msgspec.msgpack.encode(self._waiting[0]))) <= room[process]:
                room[process] -= nbytes
                self._give(process, self._waiting.popleft())

    def work(self, lost: Container[str] = ()) -> Iterator[tuple[Batch, list[Seen] | None]]:
        """Yield each batch with what it showed as it comes, None where the process died over it.

        Each process has the next batch waiting while it is at one, so that it never waits for this process. What waits
        for it fits into its pipe: else each might wait for the other to read. lost: shards not to look at, which may grow.
        """
        decoder = msgspec.msgpack.Decoder(list[Seen])
        waiting = self._waiting if self._waiting is not None else deque()
        while True:
            for process in [*self._idle, *self._busy] * AHEAD:
                while waiting and waiting[0].shard in lost:
                    waiting.popleft()
                if waiting and len(self._busy.get(process, ())) < AHEAD:
                    self._give(process, waiting.popleft())
            if not self._busy:
                return
            for key, _ in self._selector.select():
                process = key.data
                batch = self._busy[process].popleft()
                answer = receive(process.stdout)
                if answer is None:
                    waiting.extendleft(self._busy[process])
                    self._busy[process].clear()
                if not self._busy[process]:
                    del self._busy[process]
                    self._selector.unregister(process.stdout)
                    self._idle.append(process)
                if answer is None:
                    self._idle.remove(process)
                    self._bury(process)
                    self._idle.append(self._start())
                yield batch, None if answer is None else decoder.decode(answer)

    def _give(self, process: Worker, batch: Batch) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        if process not in self._busy:
            self._idle.remove(process)
            self._busy[process] = deque()
            self._selector.register(process.stdout, selectors.EVENT_READ, process)
        self._busy[process].append(batch)
        with contextlib.suppress(BrokenPipeError):  # it died while idle: its stdout says so at once
            send(process.stdin, msgspec.msgpack.encode(batch))

    def _start(self) -> Worker:
        if may_fork():
            return Forked([stream for worker in (*self._idle, *self._busy) for stream in _streams(worker)])
        root = str(Path(__file__).parent.parent.parent)
        return subprocess.Popen(
            [sys.executable, "-c", START.format(root=root)],
            bufsize=0,  # what is read ahead would not wake the selector
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the one who asked; it kills these
        )

    @staticmethod
    def _bury(process: Worker) -> None:
        process.kill()
        for stream in _streams(process):
            with contextlib.suppress(OSError):
                stream.close()
        process.wait()


def _streams(process: Worker) -> list[IO[bytes]]:
    return [stream for stream in (process.stdin, process.stdout) if stream is not None]
