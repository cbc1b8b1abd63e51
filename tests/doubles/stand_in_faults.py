"""Makes a stand-in fail as engines and trainers fail: once, at the k-th call of a function, as the environment says.

CKPTCHECK_FAULT   engine|trainer:FUNCTION:K:FAULT; ranks-METHOD for a method of all ranks
CKPTCHECK_NOTES   a file that lists what must be gone afterwards
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

KEPT: list[socket.socket] = []


def note(text: str) -> int:
    """Write it down; return how often it has been by now, by any process."""
    with open(os.environ["CKPTCHECK_NOTES"], "a+") as file:
        file.write(text + "\n")
        file.flush()
        file.seek(0)
        return file.read().splitlines().count(text)


def command_pid() -> int:
    """The process of the command: the parent of the supervisor, which is our parent."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def happen(what: str, group: dict[str, Any] | None = None) -> None:
    print(f"here comes {what}", flush=True)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "leaves":
        print("torch.OutOfMemoryError: tried to allocate 2 GiB", flush=True)
        os._exit(9)
    elif what == "hangs":
        time.sleep(600)
    elif what == "memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        bytearray(1 << 32)
    elif what == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/full")
    elif what.startswith("away="):
        os.rmdir(what.partition("=")[2])
    elif what == "taken" and group is not None:
        KEPT.append(socket.create_server((group["host"], group["port"])))
    else:  # signals to the command, half a second apart
        for name in what.split("+"):
            os.kill(command_pid(), getattr(signal, name))
            time.sleep(0.5)
        time.sleep(600)


def faulty(side: str, verbs: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Wrap verbs, and start what a process should not leave behind: children, one of them deaf, and a temporary file."""
    wanted, _, rest = os.environ.get("CKPTCHECK_FAULT", "").partition(":")
    verb, number, what = rest.split(":", 2) if wanted == side else ("", "0", "")
    for program in ("sleep 600", "trap '' TERM; while :; do sleep 600; done"):
        subprocess.Popen(["sh", "-c", program], start_new_session=True)
    tempfile.mkstemp(prefix="socket-")

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            kind = f"ranks-{named['method']}" if name == "call_ranks" else name
            if (kind, note(f"{side}:{kind}")) == (verb, int(number)):
                if what == "nonsense":
                    return None
                happen(what, named.get("group"))
            known = inspect.signature(function).parameters  # what was added for real ones is nothing to a stand-in
            return function(*arguments, **{key: value for key, value in named.items() if key in known})

        return call

    if verb == "import" and note(f"{side}:import") == int(number):
        happen(what)
    return {name: wrapped(name, function) for name, function in verbs.items()}
