"""Starts an engine's own HTTP server in the Python of that engine, as a user would from a shell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

POLL_INTERVAL = 0.2
_servers: list[Any] = []


def serve(arguments: list[str], port: int, seconds: float) -> int:
    """Run ``python ARGUMENTS`` and return its process id once it listens at the port.

    Raises RuntimeError if the process ends before that, TimeoutError after `seconds`.
    """
    process = subprocess.Popen([sys.executable, *arguments], cwd=os.getcwd(), stdin=subprocess.DEVNULL)
    _servers.append(process)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process.pid
        except OSError:
            time.sleep(POLL_INTERVAL)
    raise TimeoutError(f"the server did not listen at port {port} after {seconds:g} seconds")


RPC_METHODS = {"serve": serve}
