"""Runs what a checkpoint could abuse (its chat template, the parser of its tokenizer.json) in a child with hard limits.

A jinja sandbox keeps a template from Python's internals, not from `range` in `range`, nor from a string of ten billion
characters: only the system can bound those. So the child gives up processor time, memory, disk and processes before it
looks at the template, and where a system cannot bound these nothing is run.
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

from ckptcheck.rule import Skip

CHILD = Path(__file__).with_name("confined_child.py")
TOO_LONG = 3
"""The child's exit code for that."""
MOST_ANSWER = 1 << 26
"""More of the child's answer is not read."""
WALL = 10
"""How many times the processor time the child may take by the clock, on a machine that does other things as well."""
PASSED_ON = frozenset(["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL"])
"""Of the environment; no token, no proxy."""


@dataclass(frozen=True)
class Answer:
    """The lines the child wrote; bound: the limit that ended it, else None."""

    lines: tuple[dict[str, Any], ...]
    bound: str | None


def run_confined(task: str, raw: bytes = b"", *, seconds: int, memory: int, **job: Any) -> Answer:
    """Run a task of `confined_child`. Raises Skip where it could not be run at all."""
    if not sys.platform.startswith("linux"):
        raise Skip("needs Linux: elsewhere the memory that a template takes cannot be bounded")
    order = json.dumps({"task": task, "seconds": seconds, "memory": memory, **job}).encode() + b"\n" + raw
    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-I",
        "-B",
        str(CHILD),
    ]  # -I: nothing from the working directory, which may be the target
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out:
        asked.write(order)
        asked.seek(0)
        try:
            code = _exit_code(
                command, seconds * WALL, stdin=asked, stdout=out, stderr=subprocess.DEVNULL, env=environment
            )
        except subprocess.TimeoutExpired:
            raise Skip("the machine is too busy: a child process was given no time to look") from None
        except OSError as error:
            raise Skip(f"a child process could not be started: {error.strerror or error}") from error
        out.seek(0)
        lines = [_parsed(line) for line in out.read(MOST_ANSWER).splitlines()]
    return _judged([line for line in lines if line is not None], code, seconds)


def _exit_code(command: list[str], timeout: float, **how: Any) -> int:
    """Run a command to its end. It holds one end of a pipe: `subprocess` itself looks only every 50 ms whether it is over."""
    mine, its = os.pipe()
    try:
        try:
            child = subprocess.Popen(command, pass_fds=(its,), **how)
        finally:
            os.close(its)
        with child:
            if not select.select([mine], [], [], timeout)[0]:
                child.kill()
                raise subprocess.TimeoutExpired(command, timeout)
            return child.wait()
    finally:
        os.close(mine)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Parse a line; the last one may have been cut by a limit."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _judged(lines: list[dict[str, Any]], code: int, seconds: int) -> Answer:
    for line in lines:
        if "missing" in line:
            raise Skip(f"the library {line['missing']} is not installed")
        if "unconfined" in line:
            raise Skip(f"a child process could not be given limits: {line['unconfined']}")
    if any("done" in line for line in lines):
        return Answer(tuple(lines), None)
    if code == -signal.SIGXCPU:
        return Answer(tuple(lines), f"it came to no end within {seconds} seconds")
    if code == TOO_LONG:
        return Answer(tuple(lines), "it wrote without end")
    if not lines and code > 0:
        raise Skip("a child process could not be run with this Python")
    return Answer(tuple(lines), "it brought the process down")
