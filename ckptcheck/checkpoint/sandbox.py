"""Runs code that a checkpoint could abuse (its chat template, the parser of its tokenizer.json) in a child with hard limits.

A jinja sandbox keeps a template away from Python's internals, but not from nested loops over `range` or from a string of
ten billion characters: only the operating system can limit those. So the child limits its own processor time, memory, disk
and processes before it reads the template. On a system without such limits, nothing runs. Where a lower limit of this process
may have ended the child, that says nothing about the template.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.errors import EvidenceError
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.child_python import start_python

CHILD = Path(__file__).with_name("sandbox_child.py")
TOO_LONG, NO_ROOM = 3, 4
"""Exit codes of a child whose answer is too long, and of one that cannot write it."""
MOST_ANSWER = 1 << 26
"""Most bytes of the child's answer that are read: twice its own limit (`MOST_OUTPUT`), which not every system enforces."""
WALL = 60
"""Wall-clock limit as a multiple of the processor time. On two cores with a load of 15, an endless template takes 4 times as long
by the clock; on a busier machine it has to end by its processor time all the same. Nothing in the child waits."""
PASSED_ON = frozenset(["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL"])
"""Environment variables that the child gets: no token, no proxy."""


@dataclass(frozen=True)
class SandboxResult:
    """The answer of the child."""

    lines: tuple[dict[str, Any], ...]
    """The JSON lines it wrote."""
    bound: str | None
    """The limit that ended it, as a clause; None if it finished."""


@contextlib.contextmanager
def _explain_trouble() -> Iterator[None]:
    """Raise EvidenceError for an OSError: no room for temporary files, no descriptor left, no process."""
    try:
        yield
    except OSError as error:
        raise EvidenceError(f"a child process could not be started: {error.strerror or error}") from error


@_explain_trouble()
def run_sandboxed(task: str, raw: bytes = b"", *, seconds: int, memory: int, **job: Any) -> SandboxResult:
    """Run a task of sandbox_child.py.

    Args:
        task: ``templates``, ``tokenizer`` or ``reach``.
        raw: bytes that follow the job on the child's stdin.
        seconds: limit of processor time.
        memory: limit of memory in bytes.
        job: further entries of the job.

    Raises Skip where no child can run on this system or without a library that is not installed, EvidenceError if the child
    could not be started, be limited, or come to its end.
    """
    if not sys.platform.startswith("linux"):
        raise Skip("needs Linux: elsewhere the memory that a template takes cannot be bounded")
    order = json.dumps({"task": task, "seconds": seconds, "memory": memory, **job}).encode() + b"\n" + raw
    environment: dict[str, str | None] = {name: None for name in os.environ if name not in PASSED_ON}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as out:
        job_file.write(order)
        job_file.seek(0)
        try:
            code = _exit_code(seconds * WALL, stdin=job_file, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        except subprocess.TimeoutExpired:
            raise EvidenceError("the machine is too busy: a child process got no time to work") from None
        out.seek(0)
        lines = [_parsed(line) for line in out.read(MOST_ANSWER).splitlines()]
    return _result([line for line in lines if line is not None], code, seconds, memory)


def describe_sandbox() -> tuple[bool, str]:
    """Return whether the child can only compute here, and by what, for ``ckptcheck doctor``."""
    try:
        answer = run_sandboxed("reach", seconds=5, memory=1 << 30)
    except (Skip, EvidenceError) as trouble:
        return False, f"templates and tokenizers are not loaded: {trouble}"
    if any(line.get("refused") == "EPERM" for line in answer.lines):
        return True, "templates and tokenizers are loaded in processes without files and network (seccomp, limits)"
    return (
        False,
        "this kernel filters no system calls: templates and tokenizers are loaded with limits of time and memory alone",
    )


def _exit_code(timeout: float, **how: Any) -> int:
    """Run the child to its end and return its exit code.

    The child inherits one end of a pipe, which closes when it exits: `subprocess` itself polls only every 50 ms.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            child = start_python([str(CHILD)], flags=["-B"], pass_fds=(write_end,), **how)
        finally:
            os.close(write_end)
        with child:
            if not select.select([read_end], [], [], timeout)[0]:
                child.kill()
                raise subprocess.TimeoutExpired(str(CHILD), timeout)
            return child.wait()
    finally:
        os.close(read_end)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Parse a line of the answer; None for one that a limit cut."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _result(lines: list[dict[str, Any]], code: int, seconds: int, memory: int) -> SandboxResult:
    """Return the answer. Raises as `run_sandboxed` does."""
    for line in lines:
        if "missing" in line:
            raise Skip(f"the library {line['missing']} is not installed")
        if "unstarted" in line:
            raise EvidenceError(f"a child process could not prepare itself: {line['unstarted']}")
    is_done = any("done" in line for line in lines)
    if is_done and all(line.get("bound") != "memory" for line in lines):
        return SandboxResult(tuple(lines), None)
    if (flag := _find_lower_limit(seconds, memory)) is not None:
        raise EvidenceError(f"a child process did not finish: `ulimit {flag}` is set lower here than what it may use")
    if is_done:
        return SandboxResult(tuple(lines), None)
    if code == -signal.SIGXCPU:
        return SandboxResult(tuple(lines), f"it did not finish within {seconds} seconds")
    if code == TOO_LONG:
        return SandboxResult(tuple(lines), "it wrote without end")
    if code == NO_ROOM:
        raise EvidenceError("a child process could not write its answer: the folder for temporary files is full")
    if code == -signal.SIGKILL:  # its own limits end it otherwise
        raise EvidenceError("a child process was killed: out of memory, or by somebody")
    if not lines and code > 0:
        raise EvidenceError("a child process could not be run with this Python")
    return SandboxResult(tuple(lines), "it crashed the process")


def _find_lower_limit(seconds: int, memory: int) -> str | None:
    """Return the option of ulimit that sets a lower limit than the child's own, which the child inherits; None for none."""
    import resource

    for kind, most, flag in (
        (resource.RLIMIT_CPU, seconds, "-t"),
        (resource.RLIMIT_AS, memory, "-v"),
        (resource.RLIMIT_DATA, memory, "-d"),
        (resource.RLIMIT_FSIZE, MOST_ANSWER // 2, "-f"),
    ):
        if 0 <= resource.getrlimit(kind)[0] < most:
            return flag
    return None
