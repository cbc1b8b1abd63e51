"""Runs a function in a child process with limits on CPU and memory: for input that could crash, hang or fill the memory."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 5
"""CPU that an input under 1 MB may take."""
MEMORY = 500 << 20
"""Bytes in memory that an input may add to what the process held before it."""
DEADLINE = 120
"""Seconds after which a child that waits for something is ended: none waits for that long."""
ADDRESSES = 4 << 30
"""Bytes of address space that an input may add: enough for any library, little enough to end before the machine is full."""
STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    answer: str
    """What the function returned; of an exception its type and text."""
    seconds: float
    """The CPU that it took."""
    memory: int
    """The most bytes in memory, beyond those that the child began with: it shares its parent's, which may hold torch."""
    fault: str
    """What is wrong with that: "" where nothing is."""


def run_limited(
    function: Callable[[], str], seconds: int = CPU_SECONDS, memory: int = MEMORY, addresses: int | None = ADDRESSES
) -> Outcome:
    """Run a function in a child; a signal, an exception, and more than its limits are faults.

    seconds: of CPU. memory, addresses: bytes added at most; None: no limit on addresses, for files that are mapped.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        gc.freeze()  # what the parent holds is not searched for garbage: that would be counted as the input's CPU
        status, before = 1, find_peak_memory(resource.getrusage(resource.RUSAGE_SELF))
        os.write(writing, f"{before}\n".encode())  # at once: a signal may end the child
        try:
            limit_this_process(seconds, addresses)
            answer, status = function(), 0
        except BaseException as error:  # whatever it is, it is what was looked for
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, answer.encode("utf-8", "replace")[:4000])
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        before, _, answer = pipe.read().decode("utf-8", "replace").partition("\n")
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    used = find_peak_memory(usage) - int(before or 0)
    fault = ""
    if code < 0:
        fault = f"it was ended by {signal.Signals(-code).name}"
    elif code:
        fault = f"it raised {answer[:300]}"
    elif used > memory:
        fault = f"it held {used >> 20} MB more than before"
    return Outcome(answer, usage.ru_utime + usage.ru_stime, used, fault)


def limit_this_process(seconds: int, addresses: int | None) -> None:
    """Set limits on CPU, on time and, beyond what is mapped already, on addresses."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if addresses is not None:
        mapped = int(STATM.read_text().split()[0]) * resource.getpagesize() if STATM.exists() else 0
        resource.setrlimit(resource.RLIMIT_AS, (mapped + addresses, mapped + addresses))


def find_peak_memory(usage: resource.struct_rusage) -> int:
    """Return the most bytes in memory."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
