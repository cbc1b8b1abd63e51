"""Reads what is dangerous to read in a forked child that can compute and answer, and nothing else.

The child inherits the bytes in memory, so it needs no file. Before it reads them it gives up, for good: every file and connection
that its parent holds, processor time, memory, new files, processes and sockets (limits of the system), and every system call that
computing does not need (seccomp). A hang, a crash or memory without end is then the child's, and one sentence in the report. Limits
bind root as well: what could raise them is among the calls that the filter refuses.

Where the system cannot fork (Windows) or forking is unsafe (macOS), `run_confined` returns None, and the caller reads by itself
within its own budgets. Sources: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h; numbers of calls from the tables of
Linux 6.12 (arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl).
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

BUSY = 10
"""Seconds of the clock for each second of processor time, on a machine that runs other programs too."""
MOST_ANSWER = 1 << 30
"""Bytes of an answer that are read: the child is not trusted, and could fill the memory of its parent."""
MOST_DESCRIPTORS = 1 << 20
"""Open files and connections that the child closes: as many as a process may have on most systems."""
NO_MEMORY, NOT_CONFINED = 2, 3
"""Exit codes of a child that got no more memory, and of one that could not be confined."""
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050001
"""What the filter returns: the call is made, or fails with EPERM."""
_CALLS = {
    # read write close poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn sched_yield mremap madvise
    # getpid exit gettimeofday getrusage sigaltstack futex clock_gettime exit_group getrandom
    "x86_64": (
        0xC000003E, (0, 1, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 39, 60, 96, 98, 131, 202, 228, 231, 318),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 73, 62, 222, 226, 215, 214, 134, 135, 139, 124, 216, 233, 172, 93, 169, 165, 132, 98, 113, 94, 278),
    ),
}  # fmt: skip
"""Machine → its name in the audit of calls, and the numbers of the calls that remain."""

_is_confined = False


class Ended(Exception):
    """A limit or a signal ended the child. The message is the end of a sentence."""


def is_confined() -> bool:
    """Whether this process is such a child."""
    return _is_confined


def can_confine() -> bool:
    """Whether this process may fork a confined one."""
    return sys.platform.startswith("linux") and not _is_confined


def run_confined(function: Callable[[], bytes], *, seconds: int, memory: int) -> bytes | None:
    """Return what a function returns that runs in a confined child; None where there can be no such child.

    Args:
        function: reads what it holds in memory already, and returns bytes.
        seconds: limit of processor time.
        memory: limit of memory in bytes, beyond what this process has.

    Raises Ended, also where the function raised.
    """
    if not can_confine():
        return None
    import ctypes  # noqa: F401 - what the child needs: another thread may hold the lock of an import while it is forked
    import resource  # noqa: F401

    read_end, write_end = os.pipe()
    try:
        try:
            with warnings.catch_warnings():
                # Python warns where other threads run: the child takes none of their locks
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
        except OSError:
            return None
        if not child:
            _run_child(function, write_end, seconds, memory)
        os.close(write_end)
        write_end = -1
        return _receive(child, read_end, seconds)
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def _run_child(function: Callable[[], bytes], out: int, seconds: int, memory: int) -> None:
    """Confine this process, run the function, write its answer, and end."""
    global _is_confined
    code = NOT_CONFINED
    try:
        _is_confined = True
        os.closerange(0, out)
        os.closerange(out + 1, MOST_DESCRIPTORS)
        confine_process(seconds, memory)
        code = 1
        answer = memoryview(function())
        while answer:
            answer = answer[os.write(out, answer) :]
        code = 0
    except MemoryError:
        code = NO_MEMORY
    finally:
        os._exit(code)


class ConfinedReader:
    """A confined child that answers one request after another: starting one takes longer than reading something short.

    Its limits are for all requests together. What ends it leaves one request without an answer, which the caller then reads in a
    child of its own; the next request starts another child.
    """

    def __init__(self, function: Callable[[bytes], bytes], *, seconds: int, memory: int) -> None:
        """Describe the child, which the first request starts.

        Args:
            function: makes the answer to a request.
            seconds: limit of processor time.
            memory: limit of memory in bytes, beyond what this process has.
        """
        self._function, self._seconds, self._memory = function, seconds, memory
        self._lock = threading.Lock()
        self._child = self._owner = 0
        self._requests = self._answers = -1

    def ask(self, request: bytes) -> bytes | None:
        """Return the answer to a request; None where the child gave none."""
        with self._lock:
            try:
                if not self._child or self._owner != os.getpid():
                    self.close()  # after a fork: the pipes of the other process's child
                    self._start()
                _write_all(self._requests, len(request).to_bytes(4, "little") + request)
                end = time.monotonic() + self._seconds * BUSY
                length = int.from_bytes(_read_exactly(self._answers, 4, end), "little")
                return _read_exactly(self._answers, length, end)
            except (OSError, EOFError):
                self.close()
                return None

    def _start(self) -> None:
        import ctypes  # noqa: F401 - as in `run_confined`
        import resource  # noqa: F401

        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                _serve(self._function, requests, answers, self._seconds, self._memory)
            self._child, self._owner = child, os.getpid()
        finally:
            os.close(requests)
            os.close(answers)

    def close(self) -> None:
        """End the child, if it is this process's, and close the pipes; the next request starts another."""
        for stream in (self._requests, self._answers):
            with suppress(OSError):
                os.close(stream)
        if self._child and self._owner == os.getpid():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._child, 9)
                os.waitpid(self._child, 0)
        self._child, self._requests, self._answers = 0, -1, -1


def _serve(function: Callable[[bytes], bytes], requests: int, answers: int, seconds: int, memory: int) -> None:
    """Confine this process, and answer requests until there are no more."""
    global _is_confined
    try:
        _is_confined = True
        first, last = sorted((requests, answers))
        os.closerange(0, first)
        os.closerange(first + 1, last)
        os.closerange(last + 1, MOST_DESCRIPTORS)
        confine_process(seconds, memory)
        while True:
            length = int.from_bytes(_read_exactly(requests, 4), "little")
            answer = function(_read_exactly(requests, length))
            _write_all(answers, len(answer).to_bytes(4, "little") + answer)
    finally:
        os._exit(0)


def _write_all(stream: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(stream, rest) :]


def _read_exactly(stream: int, number: int, end: float = inf) -> bytes:
    """Read so many bytes. Raises EOFError where the other side ends before, or time.monotonic() reaches `end`."""
    if number > MOST_ANSWER:
        raise EOFError
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    data = b""
    while len(data) < number:
        if end < inf and not waiting.poll(max(0.0, end - time.monotonic()) * 1000):
            raise EOFError
        part = os.read(stream, min(number - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return data


def _receive(child: int, stream: int, seconds: int) -> bytes | None:
    """Read the child's answer until it ends. Raises Ended."""
    parts: list[bytes] = []
    length, end = 0, time.monotonic() + seconds * BUSY
    waiting = select.poll()  # a select takes no descriptor beyond 1,023
    waiting.register(stream, select.POLLIN)
    try:
        while waiting.poll(max(0.0, end - time.monotonic()) * 1000):
            part = os.read(stream, 1 << 20)
            if not part or (length := length + len(part)) > MOST_ANSWER:
                break
            parts.append(part)
        else:
            raise Ended("it came to no end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, 9)  # it has ended, or never would
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == NOT_CONFINED:
        return None
    if code == NO_MEMORY or length > MOST_ANSWER:
        raise Ended("it takes too much memory")
    if code:
        raise Ended(_describe_signal(-code, seconds) if code < 0 else "its reader gave no answer")
    return b"".join(parts)


def _describe_signal(number: int, seconds: int) -> str:
    import signal

    if number in (signal.SIGXCPU, signal.SIGKILL):
        return f"it came to no end within {seconds} seconds"
    return f"it brought a process down ({signal.Signals(number).name})"


def confine_process(seconds: int, memory: int) -> None:
    """Give up, for good, what computing and writing to open descriptors does not need. Raises OSError and ValueError."""
    import ctypes  # while files can be opened: `filter_calls` needs it
    import resource

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, 9)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    filter_calls(libc)


def filter_calls(libc: Any) -> bool:
    """Refuse every system call but those of `_CALLS` from now on; return whether this kernel could (else the limits remain)."""
    import ctypes
    import struct

    if (known := _CALLS.get(os.uname().machine)) is None:
        return False
    architecture, calls = known
    # load the machine; another one (32 bits): refuse. load the number; one of the calls: allow; else refuse
    program = [(0x20, 0, 0, 4), (0x15, 0, len(calls) + 1, architecture), (0x20, 0, 0, 0)]
    program += [(0x15, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    program += [(0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    filtered = libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_void_p(ctypes.addressof(head)), 0, 0)
    return bool(filtered == 0)


def describe_confinement() -> tuple[bool, str]:
    """Return whether pickles are read in a confined child here, and by what, for ``ckptcheck doctor``."""
    if not sys.platform.startswith("linux"):
        return False, "pickles are read without a confined process: it needs Linux"
    try:
        answer = run_confined(_try_to_open, seconds=5, memory=1 << 28)
    except Ended as ended:
        return False, f"no confined process could run: {ended}"
    if answer == b"EPERM":
        return (
            True,
            "pickles, templates and tokenizers are read in processes without files and network (seccomp, limits)",
        )
    if answer is None:
        return False, "no confined process could be started"
    return (
        False,
        "this kernel filters no system calls: a confined process has only limits of time, memory and open files",
    )


def _try_to_open() -> bytes:
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError as error:
        import errno

        return errno.errorcode.get(error.errno or 0, "").encode()
    return b""
