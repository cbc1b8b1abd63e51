"""Makes multiprocessing's forkserver a copy of this process, in place of a new Python that imports everything again."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
import warnings
from collections.abc import Collection, Sequence
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from . import forks

multiprocessing_util: Any = util
START_PYTHON = util.spawnv_passfds
"""By which multiprocessing starts a new Python."""


def start_forkserver(modules: list[str]) -> None:
    """Start the forkserver, as a copy of this process where a copy is safe (see `forks`).

    modules: what it imports before it forks; a copy has them if this process imported them.
    """
    forkserver.set_forkserver_preload(modules)
    try:
        forks.require_safe_fork()
    except RuntimeError:
        forkserver.ensure_running()
        return
    # the forkserver would start it too, as a new Python: it is one process, which the copy does not have to wait for
    resource_tracker.ensure_running()
    multiprocessing_util.spawnv_passfds = _run_in_copy
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing_util.spawnv_passfds = START_PYTHON


def _run_in_copy(executable: bytes, arguments: Sequence[str], passed: Collection[int]) -> int:
    """Run in a copy of this process what ``python … -c COMMAND`` would run; return the copy's process id.

    passed: descriptors that it gets, as of multiprocessing.util.spawnv_passfds, which this stands in for.
    """
    with warnings.catch_warnings():
        # Python 3.12 warns of the thread that receives requests; it waits for the next one, and holds no lock
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if copy:
        return copy
    try:
        _leave_conversations(passed)
        multiprocessing_util.spawnv_passfds = START_PYTHON
        # the process that was copied holds it until this function returns there
        server: Any = forkserver
        server._forkserver._lock = threading.Lock()
        exec(arguments[-1], {})
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def _leave_conversations(kept: Collection[int]) -> None:
    """Put /dev/null in the place of all sockets and pipes but these and the standard ones: their ends wait for this process's end.

    A number that were free instead would soon be another file's, which an object that still knows the number could close.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
            if number > 2 and number not in kept and kind in ("socket", "pipe"):
                os.dup2(nothing, number, inheritable=False)
