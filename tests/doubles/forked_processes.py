"""A worker module whose processes multiprocessing forks, as SGLang's are."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing import forkserver

IMPORTED = []


def prepare():
    IMPORTED.append(os.getpid())


def start_thread():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def start_forkserver():
    from ckptcheck_worker import forkserver_copy

    forkserver_copy.start_forkserver([__name__])
    return forkserver._forkserver._forkserver_pid


def run():
    """Run a process; return what it says, and its exit code."""
    reader, writer = multiprocessing.Pipe()
    process = multiprocessing.get_context("forkserver").Process(target=report, args=(writer,))
    process.start()
    writer.close()
    said = reader.recv()
    process.join()
    return {**said, "code": process.exitcode}


def report(writer):
    """Say what this process has from the one that imported, and try to start processes of its own."""
    sockets = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            sockets += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:
            continue
    said = {"imported": IMPORTED, "parent": os.getppid(), "talks": sockets - 1}
    forkserver.ensure_running()
    # until it executes Python, what was forked has the command of this process, and for a moment none
    while (command := read_command(forkserver._forkserver._forkserver_pid)) in (b"", read_command(os.getpid())):
        os.sched_yield()
    said["own"] = b"multiprocessing.forkserver" in command
    forkserver._forkserver._stop()
    writer.send(said)
    raise SystemExit(5)


def read_command(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def stop_forkserver():
    """End it as multiprocessing does, which waits until it has ended."""
    forkserver._forkserver._stop()


RPC_METHODS = {name: item for name, item in list(globals().items()) if callable(item) and not name.startswith("_")}
