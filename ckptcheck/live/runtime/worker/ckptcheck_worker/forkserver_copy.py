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
"""The function by which multiprocessing starts a new Python."""


def start_forkserver(modules: list[str]) -> None:
    """Start the forkserver, as a copy of this process if a copy is safe (see `forks`).

    modules: what it imports before it forks; a copy has them if this process imported them.
    """
    forkserver.set_forkserver_preload(modules)
    try:
        forks.require_safe_fork()
    except RuntimeError:
        forkserver.ensure_running()
        return
    # The forkserver would start it too, as a new Python; started here, it is a process that the copy need not wait for.
    resource_tracker.ensure_running()
    multiprocessing_util.spawnv_passfds = _run_in_copy
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing_util.spawnv_passfds = START_PYTHON


def _run_in_copy(executable: bytes, arguments: Sequence[str], passed: Collection[int]) -> int:
    """Run the COMMAND of ``python … -c COMMAND`` in a copy of this process; return the copy's process id.

    passed: descriptors that the copy gets, as with multiprocessing.util.spawnv_passfds, which this function replaces.
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
        # the original process holds it until this function returns there
        server: Any = forkserver
        server._forkserver._lock = threading.Lock()
        exec(arguments[-1], {})
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def _leave_conversations(kept: Collection[int]) -> None:
    """Replace all sockets and pipes but these and the standard ones by /dev/null: the other ends wait for every copy.

    A free number would soon belong to another file, which an object that still knows the number could close.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
            if number > 2 and number not in kept and kind in ("socket", "pipe"):
                os.dup2(nothing, number, inheritable=False)
