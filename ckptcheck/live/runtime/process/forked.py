"""The supervisor of a worker that another worker forked: not a child of this process, which follows its socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess


class ForkedSupervisor:
    """The `subprocess.Popen` of a forked supervisor, which sends its exit code through its lifeline and closes it.

    A killed supervisor sends no code; it counts as ended by SIGKILL.
    """

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        self.pid: int | None = None
        """Its process; None until the worker has said hello."""
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        if self.returncode is None:
            try:
                code = self._lifeline.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError:
                code = b""
            self.returncode = code[0] if code else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. timeout: seconds. Raises subprocess.TimeoutExpired after them."""
        if self.returncode is None:
            select.select([self._lifeline], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("ckptcheck_worker", timeout or 0)
        return code

    def kill(self) -> None:
        """Kill it, if it runs and has sent its process id."""
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
