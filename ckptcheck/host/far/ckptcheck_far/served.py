"""Starts an engine's own HTTP server, as somebody would from a shell, in the Python of that engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

STEP = 0.2
_started: list[Any] = []


def serve(arguments: list[str], port: int, seconds: float) -> int:
    """Run ``python ARGUMENTS`` and return its process id once somebody listens at the port.

    Raises RuntimeError where it ends before, TimeoutError where it takes longer.
    """
    process = subprocess.Popen([sys.executable, *arguments], cwd=os.getcwd(), stdin=subprocess.DEVNULL)
    _started.append(process)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process.pid
        except OSError:
            time.sleep(STEP)
    raise TimeoutError(f"nobody listened at port {port} after {seconds:g} seconds")


VERBS = {"serve": serve}
