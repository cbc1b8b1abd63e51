"""The parent of the engine's process: sees that nothing the engine started outlives it.

Engines start processes that start processes, in sessions of their own, and a failing one kills its parent and leaves the
rest behind. On Linux all that is orphaned below the guardian becomes its child (PR_SET_CHILD_SUBREAPER), so it can find
it. It also ends everything when the lifeline closes: because the near side wants so, or because it is no more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER, linux/prctl.h."""
GRACE = 3.0
"""Seconds between asking (SIGTERM) and SIGKILL."""
STEP = 0.05
"""Seconds between two looks at the children."""


def guard(lifeline: socket.socket, scratch: list[str], run: Callable[[], int]) -> None:
    """Run a function in a child with a session of its own, and end as it ended: with its code, or 128 + its signal.

    scratch: folders that are removed where the near side cannot do it any more. Never returns.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        lifeline.close()
        os.setsid()
        code = 1
        try:
            code = run()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status, abandoned = _wait(child, lifeline)
    if status is None:
        status = _ask(child)
    _end(child)
    if abandoned:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    os._exit(code)


def _wait(child: int, lifeline: socket.socket) -> tuple[int | None, bool]:
    """Wait for the child, and bury what is orphaned meanwhile. Returns its status, and whether the near side is gone.

    The status is None when the child has to be ended: the near side said so (a byte), or fell silent.
    """
    while True:
        status = _reap(child)
        if status is not None:
            return status, False
        if select.select([lifeline], [], [], STEP)[0]:
            return None, not lifeline.recv(1)


def _ask(child: int) -> int:
    """Ask everybody to end. Returns the status of the child, made up where it did not in time."""
    for process in _descendants() or [child]:
        _kill(process, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        status = _reap(child)
        if status is not None:
            return status
        time.sleep(STEP)
    return signal.SIGKILL


def _end(child: int) -> None:
    """Kill whatever is left, until nothing is. Where there is no /proc, that is the process group of the child.

    A resource tracker (multiprocessing) is left time: it ends by itself, and removes what the others had in /dev/shm.
    """
    for step in range(int(2 * GRACE / STEP)):
        _reap(child)
        left = _descendants()
        if left is None:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            return
        if not left:
            _reap(child)  # who died since: an init that does not reap would keep it as a zombie
            return
        for process in left:
            if step * STEP > GRACE or not _tracks(process):
                _kill(process, signal.SIGKILL)
        time.sleep(STEP)


def _reap(child: int) -> int | None:
    """Bury every dead child; return the status of the one asked for if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == child:
                found = status
    return found


def _kill(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)


def _tracks(process: int) -> bool:
    return b"multiprocessing.resource_tracker" in _read(process, "cmdline")


def _descendants() -> list[int] | None:
    """Return every process below this one that still runs, None where there is no /proc to tell."""
    try:
        names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    children: dict[int, list[int]] = {}
    for process in names:
        fields = _read(process, "stat").rpartition(b")")[2].split()  # the name before it may hold anything
        if fields and fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(process)
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _read(process: int, what: str) -> bytes:
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""
