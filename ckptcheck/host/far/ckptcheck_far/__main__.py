"""Serves the verbs of one module: ``python -m ckptcheck_far CONTROL LIFELINE MODULE FILE SCRATCH…``.

CONTROL and LIFELINE are sockets inherited from the near side; FILE is where MODULE has to come from, empty for any.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import platform
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from . import guardian, wire

PIECE = 1 << 20
TAIL = 4000
"""Characters of a traceback that are worth sending."""

Verbs = dict[str, Callable[..., Any]]


def main() -> None:
    """Become the guardian of a process that serves."""
    control, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for inherited in (control, lifeline):
        inherited.set_inheritable(False)
    module, file, *scratch = sys.argv[3:]

    def run() -> int:
        return serve(control, module, file)

    guardian.guard(lifeline, scratch, run)


def serve(control: socket.socket, module: str, file: str) -> int:
    """Answer requests until the near side closes its end."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it hang? asked before it is killed
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
    try:
        verbs = load(module, file)
    except BaseException as error:
        deliver(control, wire.encode({"id": 0, "error": told(error)}))
        return 1
    here = {"pid": os.getpid(), "python": platform.python_version(), "verbs": sorted(verbs)}
    deliver(control, wire.encode({"id": 0, "result": here}))
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(control, requests), daemon=True).start()
    while (request := requests.get()) is not None:
        if not deliver(control, answer(verbs, request)):
            break
    atexit._run_exitfuncs()  # the guardian ends what is left, without waiting for threads that never end
    return 0


def listen(control: socket.socket, requests: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Take requests from the wire while the main thread works, so that a large one never blocks the sender."""
    inbox = wire.Inbox()
    with contextlib.suppress(OSError, ValueError):
        while piece := control.recv(PIECE):
            for request in inbox.feed(piece):
                requests.put(request)
    requests.put(None)


def load(module: str, file: str) -> Verbs:
    """Import the module whose functions are served. Raises ImportError when another of that name comes first.

    Its folder comes last, so that nothing beside it hides a package. Processes that multiprocessing spawns find it too.
    """
    if file:
        sys.path.append(os.path.dirname(file))
    loaded = importlib.import_module(module)
    if file and os.path.realpath(loaded.__file__ or "") != os.path.realpath(file):
        raise ImportError(f"{module} is {loaded.__file__} here, so {file} needs another name")
    return dict(loaded.VERBS)


def answer(verbs: Verbs, request: dict[str, Any]) -> bytes:
    """Do what is asked and say what came of it; no error of a verb ends the process, not even sys.exit."""
    try:
        if request["verb"] not in verbs:
            raise LookupError(f"there is no verb {request['verb']}; there are {', '.join(sorted(verbs))}")
        result = verbs[request["verb"]](**request["arguments"])
        return wire.encode({"id": request["id"], "result": result})
    except BaseException as error:
        return wire.encode({"id": request["id"], "error": told(error)})


def told(error: BaseException) -> dict[str, str]:
    """Say what was raised, so that JSON can carry it."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": str(error)[:TAIL], "traceback": lines[-TAIL:]}


def deliver(control: socket.socket, message: bytes) -> bool:
    """Send a message; return whether there was somebody to send it to."""
    try:
        control.sendall(message)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
