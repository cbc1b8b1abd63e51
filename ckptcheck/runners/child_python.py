"""Starts every Python that ckptcheck needs, so that none imports from the working directory (import_path.py says how)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptcheck.runners import import_path

MISLEADING = frozenset(
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "VIRTUAL_ENV"),
        *("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "PIP_CONSTRAINT"),
    ]
)
"""Variables that point to the caller's own packages, or make pip install elsewhere."""


def start_python(
    what: Sequence[str],
    python: Path | None = None,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a Python.

    Args:
        what: ``-m MODULE``, ``-c CODE`` or ``FILE``, and its arguments.
        python: another Python, which sees nothing of this one's packages; None for this one, which imports from where this
            process does.
        flags: of the interpreter.
        env: variables that are added to those of this process; None removes one.
        options: of `subprocess.Popen`. What starts Pythons of its own, such as an engine, needs a `cwd` without foreign files.

    Raises OSError.
    """
    command, variables = _prepare(what, python, flags, env)
    return subprocess.Popen(command, env=variables, **options)


def run_python(
    what: Sequence[str],
    python: Path | None = None,
    *,
    env: Mapping[str, str | None] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python to its end, without input unless `options` give it some. As `start_python`, with options of `subprocess.run`.

    Raises OSError, and subprocess.TimeoutExpired after a ``timeout``.
    """
    command, variables = _prepare(what, python, (), env)
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(command, env=variables, capture_output=True, check=False, **options)


def clean_env() -> dict[str, str]:
    """Return the environment variables for another Python: without those that point to the caller's own."""
    return {name: value for name, value in os.environ.items() if name not in MISLEADING}


def _prepare(
    what: Sequence[str], python: Path | None, flags: Sequence[str], env: Mapping[str, str | None] | None
) -> tuple[list[str], dict[str, str]]:
    variables: dict[str, str | None] = {**(os.environ if python is None else clean_env()), **(env or {})}
    if python is None:
        folders = import_path.without_working_directory(sys.path)
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*folders, import_path.ROOT]))
    command = [sys.executable if python is None else str(python), *flags, import_path.__file__, *what]
    return command, {name: value for name, value in variables.items() if value is not None}
