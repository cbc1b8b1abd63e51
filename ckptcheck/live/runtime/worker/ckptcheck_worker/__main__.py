"""Serves the functions of one module: ``python -m ckptcheck_worker CONTROL LIFELINE MODULE FILE SCRATCH…``.

CONTROL and LIFELINE are sockets inherited from the client; FILE is the path that MODULE must come from, empty for any path.
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

from . import forks, quick_imports, supervisor, wire

RECEIVE_BYTES = 1 << 20
MAX_ERROR_CHARS = 4000
"""Characters of an error message, and of the end of a traceback, that are sent."""
PREPARE = "prepare"
"""The method by which an engine's worker only imports."""
FORK = "fork_worker"
"""The method by which a worker that has imported is copied; every module has it."""

Methods = dict[str, Callable[..., Any]]


def main() -> None:
    """Fork the process that serves, and supervise it."""
    control, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for inherited in (control, lifeline):
        inherited.set_inheritable(False)
    module, file, *scratch = sys.argv[3:]

    def run() -> int:
        return serve(control, module, file)

    supervisor.supervise(lifeline, scratch, run)


def serve(control: socket.socket, module: str, file: str) -> int:
    """Answer requests until the client closes the connection."""
    faulthandler.enable()
    # the client sends SIGUSR1 before it kills a process that hangs
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        methods = load_methods(module, file)
    except BaseException as error:
        send_message(control, wire.encode({"id": 0, "error": describe_error(error)}))
        return 1
    return answer_requests(control, methods)


def answer_requests(control: socket.socket, methods: Methods) -> int:
    """Say hello, and answer requests until the client closes the connection; return the exit code."""
    descriptors: list[int] = []

    def fork_worker(work_folder: str, variables: dict[str, str], scratch: list[str]) -> None:
        passed = [descriptors.pop(0) for _ in range(3)]

        def serve_in_fork(new_control: socket.socket) -> int:
            control.close()
            return answer_requests(new_control, methods)

        forks.fork_worker(passed, work_folder, variables, scratch, serve_in_fork)

    hello = {
        "pid": os.getpid(),
        "supervisor": os.getppid(),
        "python": platform.python_version(),
        "methods": sorted(methods),
    }
    send_message(control, wire.encode({"id": 0, "result": hello}))
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=receive_requests, args=(control, requests, descriptors), daemon=True).start()
    while (request := requests.get()) is not None:
        if request["method"] not in (PREPARE, FORK):
            quick_imports.end_quick_imports()
        if not send_message(control, handle_request({**methods, FORK: fork_worker}, request)):
            break
    # the supervisor ends all other processes, and this one does not wait for threads that never end
    atexit._run_exitfuncs()
    return 0


def receive_requests(
    control: socket.socket, requests: queue.SimpleQueue[dict[str, Any] | None], descriptors: list[int]
) -> None:
    """Receive requests while the main thread works, so that a large request never blocks the client.

    descriptors: receives the descriptors that come with requests.
    """
    decoder = wire.FrameDecoder()
    with contextlib.suppress(OSError, ValueError):
        while True:
            data, passed, _, _ = socket.recv_fds(control, RECEIVE_BYTES, 3)
            for number in passed:
                os.set_inheritable(number, False)
            descriptors += passed
            if not data:
                break
            for request in decoder.feed(data):
                requests.put(request)
    requests.put(None)


def load_methods(module: str, file: str) -> Methods:
    """Import the module whose functions are served. Raises ImportError when another module of that name comes first.

    The module's folder goes to the end of sys.path, so that no file beside it hides a package. Processes that multiprocessing
    spawns inherit the path.
    """
    if file:
        sys.path.append(os.path.dirname(file))
    loaded = importlib.import_module(module)
    if file and os.path.realpath(loaded.__file__ or "") != os.path.realpath(file):
        raise ImportError(f"this Python already has a module {module} at {loaded.__file__}: rename {file}")
    return dict(loaded.RPC_METHODS)


def handle_request(methods: Methods, request: dict[str, Any]) -> bytes:
    """Call the requested function and encode its result or error; no error ends the process, not even sys.exit."""
    try:
        if request["method"] not in methods:
            raise LookupError(f"there is no method {request['method']}; there are {', '.join(sorted(methods))}")
        result = methods[request["method"]](**request["arguments"])
        return wire.encode({"id": request["id"], "result": result})
    except BaseException as error:
        return wire.encode({"id": request["id"], "error": describe_error(error)})


def describe_error(error: BaseException) -> dict[str, str]:
    """Describe an exception as JSON."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "type": type(error).__name__,
        "message": str(error)[:MAX_ERROR_CHARS],
        "traceback": lines[-MAX_ERROR_CHARS:],
    }


def send_message(control: socket.socket, message: bytes) -> bool:
    """Send a message; return False if the client has closed the connection."""
    try:
        control.sendall(message)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
