"""Keeps a line of output from being a command to the program that runs a CI job and reads its output.

GitHub's runner obeys a line that begins with ``::`` after blanks, and ``##[`` anywhere in it (actions/runner,
src/Runner.Common/ActionCommand.cs); Azure Pipelines obeys ``##vso[``, and TeamCity ``##teamcity[``. A file name can be one.
"""

from __future__ import annotations

import re
from typing import IO, Any

_COLONS = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
HASHES = re.compile(r"#(?=#\w*\[)")
"""The first sign of a command that a runner obeys anywhere in a line: ``##[``, ``##vso[``, ``##teamcity[``."""


def break_commands(text: str) -> str:
    r"""Break the commands that a runner would obey with a blank.

    >>> break_commands("  ::stop-commands::x\na::b ##[error]")
    '  : :stop-commands::x\na::b # #[error]'
    """
    return HASHES.sub("# ", _COLONS.sub(r"\1: ", text)) if ":" in text or "##" in text else text


class CommandFreeStream:
    """A text stream without commands; whole lines must come in one write."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(break_commands(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
