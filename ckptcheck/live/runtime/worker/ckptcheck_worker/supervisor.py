"""The supervisor: parent of the engine's process, makes sure that no process the engine started outlives it.

Engines start processes that start processes, in sessions of their own, and a failing one kills its parent and leaves the
rest behind. On Linux every orphan below the supervisor becomes its child (PR_SET_CHILD_SUBREAPER), so it finds them all.
It also ends everything when the lifeline closes: the client closed it, or the client died.
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

SET_NAME, SUBREAPER = 15, 36
"""PR_SET_NAME and PR_SET_CHILD_SUBREAPER, linux/prctl.h."""
NAME = b"ckpt-supervisor"
"""The process name by which a worker's supervisor recognises the supervisors of its copies; Linux keeps 15 bytes."""
GRACE = 3.0
"""Seconds between asking (SIGTERM) and SIGKILL."""
STEP = 0.05
"""Seconds between two polls of the children."""


def supervise(lifeline: socket.socket, scratch: list[str], run: Callable[[], int]) -> None:
    """Run a function in a child with a session of its own, and exit like the child: with its code, or 128 + its signal.

    scratch: folders to remove if the client dies before it can. Never returns.
    """
    _control_process(SUBREAPER, 1)
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
    _control_process(SET_NAME, NAME)
    status, abandoned = _wait(child, lifeline)
    if status is None:
        status = _terminate_all(child)
    _kill_all(child)
    if abandoned:
        for folder in scratch:
            shutil.rmtree(folder, ignore_errors=True)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    # a client that forked its worker is not this process's parent, and learns the code from here
    with contextlib.suppress(OSError):
        lifeline.send(bytes([code]))
    os._exit(code)


def _control_process(option: int, value: int | bytes) -> None:
    """Call prctl, if the system has it."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait(child: int, lifeline: socket.socket) -> tuple[int | None, bool]:
    """Wait for the child and reap orphans meanwhile. Returns its status, and whether the client is dead.

    The status is None when the supervisor has to end the child: the client asked for it (a byte), or died.
    """
    while True:
        status = _reap(child)
        if status is not None:
            return status, False
        if select.select([lifeline], [], [], STEP)[0]:
            return None, not lifeline.recv(1)


def _terminate_all(child: int) -> int:
    """Send SIGTERM to all descendants. Returns the status of the child, SIGKILL if it has not ended after the grace period."""
    for process in _descendants() or [child]:
        if not _is_supervisor(process):
            _kill(process, signal.SIGTERM)
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        status = _reap(child)
        if status is not None:
            return status
        time.sleep(STEP)
    return signal.SIGKILL


def _kill_all(child: int) -> None:
    """Kill all descendants until none is left; without /proc, kill the process group of the child.

    A multiprocessing resource tracker gets time to end by itself: it removes the /dev/shm blocks of the others. So does
    another supervisor whose worker is killed here: it may have folders to remove.
    """
    for step in range(int(2 * GRACE / STEP)):
        _reap(child)
        remaining = _descendants()
        if remaining is None:
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            return
        if not remaining:
            # reap what died since: an init process that does not reap would keep it as a zombie
            _reap(child)
            return
        for process in remaining:
            if step * STEP > GRACE or not (_is_resource_tracker(process) or _is_supervisor(process)):
                _kill(process, signal.SIGKILL)
        time.sleep(STEP)


def _reap(child: int) -> int | None:
    """Reap every dead child; return the status of `child` if it was among them."""
    child_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == child:
                child_status = status
    return child_status


def _kill(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)


def _is_resource_tracker(process: int) -> bool:
    return b"multiprocessing.resource_tracker" in _read_proc(process, "cmdline")


def _is_supervisor(process: int) -> bool:
    return _read_proc(process, "comm").strip() == NAME


def _descendants() -> list[int] | None:
    """Return every running process below this one; None without /proc."""
    try:
        names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    children: dict[int, list[int]] = {}
    for process in names:
        # the process name in parentheses may contain any character
        fields = _read_proc(process, "stat").rpartition(b")")[2].split()
        if fields and fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(process)
    descendants: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        descendants += below
        queue += below
    return descendants


def _read_proc(process: int, what: str) -> bytes:
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""
