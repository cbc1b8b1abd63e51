"""A worker process made by forking: it is there at once, with numpy loaded, where a new Python takes 0.1 s to start."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import signal
import sys
import threading
import warnings
from typing import IO

ANSWERS = 1 << 19
"""Bytes of answers that may wait for this process, where the system allows it."""


def may_fork() -> bool:
    """Whether this process may be forked: on Linux, and with no other thread that might hold a lock just now."""
    return sys.platform == "linux" and threading.active_count() == 1


class Forked:
    """A child that answers batches as `worker.main` does; it has of `subprocess.Popen` what the crew uses."""

    def __init__(self, others: list[IO[bytes]]) -> None:
        """others: streams to other workers, which the child must not keep open: their end would not be seen."""
        there, self_in = os.pipe()
        self_out, back = os.pipe()
        with contextlib.suppress(OSError):  # so that answers about embeddings, 40 KB each, may wait to be read
            fcntl.fcntl(back, fcntl.F_SETPIPE_SZ, ANSWERS)
        with warnings.catch_warnings():  # Python counts threads of native libraries too; the worker calls none of those
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            try:
                for stream in others:
                    os.close(stream.fileno())
                os.close(self_in)
                os.close(self_out)
                _work(there, back)
            finally:
                os._exit(1)
        os.close(there)
        os.close(back)
        self.stdin: IO[bytes] = os.fdopen(self_in, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(self_out, "rb", buffering=0)
        self._over = False

    def kill(self) -> None:
        """Kill the child, if it lives."""
        if not self._over:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        if not self._over:
            os.waitpid(self.pid, 0)
            self._over = True


def _work(source: int, sink: int) -> None:
    """Be a worker until the other side closes."""
    from ckptcheck.values.worker import serve

    os.setsid()  # Ctrl-C is for the one who asked; it kills this
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    faulthandler.disable()  # being killed by SIGBUS is in the order of things here
    nowhere = os.open(os.devnull, os.O_RDWR)
    source, sink = (
        fcntl.fcntl(end, fcntl.F_DUPFD, 3) for end in (source, sink)
    )  # whoever asked may have closed 0 to 2
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    with os.fdopen(source, "rb") as reader, os.fdopen(sink, "wb") as writer:
        serve(reader, writer)
