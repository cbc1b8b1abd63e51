"""Runs a command of the user's, below the supervisor that ends every process which it starts."""

from __future__ import annotations

import subprocess
from typing import Any

_running: list[subprocess.Popen[bytes]] = []


def start(arguments: list[str], folder: str, variables: dict[str, str], log: str) -> None:
    """Start the command. folder: where it works; variables: its whole environment; log: a file for its output."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            arguments, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    _running.append(process)


def wait(seconds: float) -> int | None:
    """Wait for its end, so long at most; return its exit code, or None while it runs."""
    try:
        return _running[-1].wait(seconds)
    except subprocess.TimeoutExpired:
        return None


RPC_METHODS: dict[str, Any] = {"start": start, "wait": wait}
