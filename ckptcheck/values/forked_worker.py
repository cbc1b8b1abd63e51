"""A worker process made by forking: it starts at once with numpy loaded, where a new Python takes 0.1 s to start."""

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

RESULT_PIPE_BYTES = 1 << 19
"""Bytes of results that may wait to be read by the parent, where the system allows a pipe of that size."""


def can_fork() -> bool:
    """Whether this process can be forked safely: on Linux, and with no other thread that might hold a lock."""
    return sys.platform == "linux" and threading.active_count() == 1


class ForkedWorker:
    """A child process that scans batches as `worker.main` does, with as much of `subprocess.Popen` as the pool uses."""

    def __init__(self, other_streams: list[IO[bytes]]) -> None:
        """Fork the child.

        other_streams: Streams to other workers. The child closes its copies: if it kept them open, the other
        workers would never read the end of their input.
        """
        ends: list[int] = []
        try:
            for _ in range(2):
                ends += os.pipe()
            child_in, parent_out, parent_in, child_out = ends
            # Results on an embedding take 40 KB each: a larger pipe lets several wait to be read.
            with contextlib.suppress(OSError):
                fcntl.fcntl(child_out, fcntl.F_SETPIPE_SZ, RESULT_PIPE_BYTES)
            # Python also counts the threads of native libraries and warns; the worker calls none of those libraries.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.pid = os.fork()
        except OSError:
            for end in ends:
                os.close(end)
            raise
        if self.pid == 0:
            try:
                for stream in other_streams:
                    os.close(stream.fileno())
                os.close(parent_out)
                os.close(parent_in)
                _run_worker(child_in, child_out)
            finally:
                os._exit(1)
        os.close(child_in)
        os.close(child_out)
        self.stdin: IO[bytes] = os.fdopen(parent_out, "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(parent_in, "rb", buffering=0)
        self._reaped = False

    def kill(self) -> None:
        """Kill the child if it is alive."""
        if not self._reaped:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until the child has ended."""
        if not self._reaped:
            os.waitpid(self.pid, 0)
            self._reaped = True


def _run_worker(source: int, sink: int) -> None:
    """Serve batches in the child until the parent closes its end. source, sink: file descriptors of the pipes."""
    from ckptcheck.values.worker import serve_batches

    # Ctrl-C goes to the parent, which kills this process.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    # A file that shrinks kills this process by SIGBUS. That is expected and needs no traceback.
    faulthandler.disable()
    dev_null = os.open(os.devnull, os.O_RDWR)
    # The parent may have closed 0 to 2, so the pipes may have these numbers: move them away first.
    source, sink = (fcntl.fcntl(end, fcntl.F_DUPFD, 3) for end in (source, sink))
    for standard in (0, 1, 2):
        os.dup2(dev_null, standard)
    with os.fdopen(source, "rb") as reader, os.fdopen(sink, "wb") as writer:
        serve_batches(reader, writer)
