"""Runs code that a checkpoint could abuse (its chat template, the parser of its tokenizer.json) in a child with hard limits.

A jinja sandbox keeps a template away from Python's internals, but not from nested loops over `range` or from a string of
ten billion characters: only the operating system can limit those. So the child limits its own processor time, memory, disk
and processes before it reads the template. On a system without such limits, nothing runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.linter.rule import Skip

CHILD = Path(__file__).with_name("sandbox_child.py")
TOO_LONG = 3
"""Exit code of a child whose answer is too long."""
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


def run_sandboxed(task: str, raw: bytes = b"", *, seconds: int, memory: int, **job: Any) -> SandboxResult:
    """Run a task of sandbox_child.py.

    Args:
        task: ``templates``, ``tokenizer`` or ``reach``.
        raw: bytes that follow the job on the child's stdin.
        seconds: limit of processor time.
        memory: limit of memory in bytes.
        job: further entries of the job.

    Raises Skip if the child could not run at all.
    """
    if not sys.platform.startswith("linux"):
        raise Skip("needs Linux: elsewhere the memory that a template takes cannot be bounded")
    order = json.dumps({"task": task, "seconds": seconds, "memory": memory, **job}).encode() + b"\n" + raw
    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    # -I: import nothing from the working directory, which may be the target.
    command = [sys.executable, "-I", "-B", str(CHILD)]
    with tempfile.TemporaryFile() as job_file, tempfile.TemporaryFile() as out:
        job_file.write(order)
        job_file.seek(0)
        try:
            code = _exit_code(
                command, seconds * WALL, stdin=job_file, stdout=out, stderr=subprocess.DEVNULL, env=environment
            )
        except subprocess.TimeoutExpired:
            raise Skip("the machine is too busy: a child process was given no time to look") from None
        except OSError as error:
            raise Skip(f"a child process could not be started: {error.strerror or error}") from error
        out.seek(0)
        lines = [_parsed(line) for line in out.read(MOST_ANSWER).splitlines()]
    return _result([line for line in lines if line is not None], code, seconds)


def describe_sandbox() -> tuple[bool, str]:
    """Return whether the child can only compute here, and by what, for ``ckptcheck doctor``."""
    try:
        answer = run_sandboxed("reach", seconds=5, memory=1 << 30)
    except Skip as skip:
        return False, f"templates and tokenizers are not loaded: {skip}"
    if any(line.get("refused") == "EPERM" for line in answer.lines):
        return True, "templates and tokenizers are loaded in processes without files and network (seccomp, limits)"
    return (
        False,
        "this kernel filters no system calls: templates and tokenizers are loaded with limits of time and memory alone",
    )


def _exit_code(command: list[str], timeout: float, **how: Any) -> int:
    """Run a command to its end and return its exit code.

    The child inherits one end of a pipe, which closes when it exits: `subprocess` itself polls only every 50 ms.
    """
    read_end, write_end = os.pipe()
    try:
        try:
            child = subprocess.Popen(command, pass_fds=(write_end,), **how)
        finally:
            os.close(write_end)
        with child:
            if not select.select([read_end], [], [], timeout)[0]:
                child.kill()
                raise subprocess.TimeoutExpired(command, timeout)
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


def _result(lines: list[dict[str, Any]], code: int, seconds: int) -> SandboxResult:
    for line in lines:
        if "missing" in line:
            raise Skip(f"the library {line['missing']} is not installed")
        if "unconfined" in line:
            raise Skip(f"a child process could not be given limits: {line['unconfined']}")
    if any("done" in line for line in lines):
        return SandboxResult(tuple(lines), None)
    if code == -signal.SIGXCPU:
        return SandboxResult(tuple(lines), f"it came to no end within {seconds} seconds")
    if code == TOO_LONG:
        return SandboxResult(tuple(lines), "it wrote without end")
    if not lines and code > 0:
        raise Skip("a child process could not be run with this Python")
    return SandboxResult(tuple(lines), "it brought the process down")
