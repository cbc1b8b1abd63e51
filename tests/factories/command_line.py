"""Runs the command as a user does, in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.paths import ROOT

SCHEMA = json.loads((ROOT / "ckptcheck/reporters/report.schema.json").read_text(encoding="utf-8"))
RULE = '''"""Every model is called Bob.

## What it checks
Its name.
"""
from ckptcheck import Problem, rule


@rule("BOB001", "other-name", severity="warning")
def check(ckpt):
    {body}
'''
"""A rule of a user's own; `body` is what it does."""


def run(here: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, in a process of its own. environment: further variables."""
    variables = {**os.environ, "COLUMNS": "100", **environment}
    if any(name.startswith(("PYTHON", "LC_", "LANG")) for name in environment):
        return run_from_scratch(here, *arguments, **environment)
    with tempfile.TemporaryDirectory(prefix="ckptcheck-command-") as folder:
        streams = {stream: Path(folder) / stream for stream in ("stdout", "stderr")}
        for path in streams.values():
            path.touch()
        request = {"cwd": os.fspath(here), "arguments": [*map(str, arguments)], "environment": variables}
        code = _ask_server(request | {stream: str(path) for stream, path in streams.items()})
        texts = [path.read_bytes().decode() for path in streams.values()]
    return subprocess.CompletedProcess(["ckptcheck", *map(str, arguments)], code, *texts)


def run_from_scratch(here: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in a new Python, whose start depends on the variables, and whose streams are pipes."""
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *map(str, arguments)],
        cwd=here,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


def run_with_limit(
    kind: int, most: int, *arguments: object, here: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that has a limit: a number of the module resource, as `ulimit` sets it."""
    import resource

    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *map(str, arguments)],
        cwd=here,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        preexec_fn=lambda: resource.setrlimit(kind, (most, most)),
        check=False,
    )


def _ask_server(request: dict[str, Any]) -> int:
    """Have the server of this process run a command; return its exit code."""
    server = _start_server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the server of commands died"
    return int(answer)


@cache
def _start_server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.factories.command_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_stop_server, server)
    return server


def _stop_server(server: subprocess.Popen[str]) -> None:
    server.communicate()
