"""Runs a function in a child process with limits on CPU and memory: for input that could crash, hang or fill the memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

CPU_SECONDS = 5
"""CPU that an input under 1 MB may take."""
MEMORY = 500 << 20
"""Bytes that an input may make the process hold at once, in whole."""
ADDRESSES = 4 << 30
"""Bytes of address space: enough for any library, little enough to end before the machine is full."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    answer: str
    """What the function returned; of an exception its type and text."""
    seconds: float
    """The CPU that it took."""
    memory: int
    """The most bytes that it held."""
    fault: str
    """What is wrong with that: "" where nothing is."""


def run_limited(function: Callable[[], str]) -> Outcome:
    """Run a function in a child; a signal, an exception, and more than `CPU_SECONDS` or `MEMORY` are faults."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
            answer, status = function(), 0
        except BaseException as error:  # whatever it is, it is what was looked for
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, answer.encode("utf-8", "replace")[:4000])
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read().decode("utf-8", "replace")
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    fault = ""
    if code < 0:
        fault = f"it was ended by {signal.Signals(-code).name}"
    elif code:
        fault = f"it raised {answer[:300]}"
    elif memory > MEMORY:
        fault = f"it held {memory >> 20} MB"
    return Outcome(answer, usage.ru_utime + usage.ru_stime, memory, fault)
