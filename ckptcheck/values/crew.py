"""Worker processes: each is given a batch, and another when it has answered; one that dies is replaced."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ckptcheck.values.look import Seen
from ckptcheck.values.worker import Batch, receive, send

START = "import sys; sys.path.insert(0, {root!r}); from ckptcheck.values.worker import main; main()"


class Crew:
    """Processes that look at batches side by side. Use as a context manager: on the way out they are killed."""

    def __init__(self, number: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._busy: dict[subprocess.Popen[bytes], Batch] = {}
        self._idle = [self._start() for _ in range(number)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes; may be called twice."""
        for process in (*self._idle, *self._busy):
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            process.wait()
        self._idle, self._busy = [], {}
        self._selector.close()

    def work(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, list[Seen] | None]]:
        """Yield each batch with what it showed as it comes, None where the process died over it."""
        decoder = msgspec.msgpack.Decoder(list[Seen])
        waiting = iter(batches)
        exhausted = False
        while True:
            while self._idle and not exhausted:
                batch = next(waiting, None)
                if batch is None:
                    exhausted = True
                else:
                    self._give(self._idle.pop(), batch)
            if not self._busy:
                return
            for key, _ in self._selector.select():
                process = key.data
                batch = self._busy.pop(process)
                self._selector.unregister(process.stdout)
                answer = receive(process.stdout)
                if answer is None:
                    self._bury(process)
                    self._idle.append(self._start())
                    yield batch, None
                else:
                    self._idle.append(process)
                    yield batch, decoder.decode(answer)

    def _give(self, process: subprocess.Popen[bytes], batch: Batch) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._busy[process] = batch
        self._selector.register(process.stdout, selectors.EVENT_READ, process)
        with contextlib.suppress(BrokenPipeError):  # it died while idle: its stdout says so at once
            send(process.stdin, msgspec.msgpack.encode(batch))

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parent.parent.parent)
        return subprocess.Popen(
            [sys.executable, "-c", START.format(root=root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the one who asked; it kills these
        )

    @staticmethod
    def _bury(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()
