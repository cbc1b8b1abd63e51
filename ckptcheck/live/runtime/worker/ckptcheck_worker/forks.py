"""Forks workers from one that has only imported: an engine's imports take longer than its start.

A fork is safe while nothing else runs that could hold a lock, which the copy would find locked for good. So no fork
happens once a pool of threads runs (torch's, OpenBLAS's), or a child process, which only its parent can wait for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable

from . import supervisor


def fork_worker(
    descriptors: list[int],
    work_folder: str,
    variables: dict[str, str],
    scratch: list[str],
    serve: Callable[[socket.socket], int],
) -> None:
    """Fork a worker with a supervisor of its own, neither of which is a child of this process.

    Args:
        descriptors: the new worker's control, lifeline and log, which are closed here.
        work_folder: its working directory.
        variables: to add to the environment of this process.
        scratch: see `supervisor.supervise`.
        serve: answers the requests that come through a socket, and returns an exit code.

    Raises RuntimeError where a fork is not safe.
    """
    control, lifeline = (socket.socket(fileno=number) for number in descriptors[:2])
    with control, lifeline, open(descriptors[2], "ab", buffering=0) as log:
        require_safe_fork()
        with warnings.catch_warnings():
            # Python 3.12 warns of the thread that receives requests; it waits for the next one, and holds no lock
            warnings.simplefilter("ignore", DeprecationWarning)
            between = os.fork()
        if between == 0:
            try:
                # the supervisor above adopts its child, so an engine that signals its own children does not reach it
                if os.fork() == 0:
                    _enter(log.fileno(), work_folder, variables)
                    supervisor.supervise(lifeline, scratch, lambda: serve(control))
            finally:
                os._exit(0)
        os.waitpid(between, 0)


def require_safe_fork() -> None:
    """Raise RuntimeError if this process has other threads than the one that works and the one that receives, or children."""
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        raise RuntimeError("this system does not say how many threads a process has") from None
    if threads != 2 or threading.active_count() != 2:
        raise RuntimeError(f"it has {threads} threads")
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        raise RuntimeError("it has started other processes")


def _enter(log: int, work_folder: str, variables: dict[str, str]) -> None:
    """Leave the session, the output and the folder of the original process."""
    os.setsid()
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.chdir(work_folder)
    os.environ.update(variables)
    tempfile.tempdir = None
