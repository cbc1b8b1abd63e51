"""Computes the output of commands that only compute a text: basename, dirname, realpath, echo, seq, and simple sed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

REPLACEMENT = re.compile(r"s([#/|,@])([\w./ -]*)\1([\w./ -]*)\1(g?)")
"""A replacement of plain text, by plain text."""
MOST = 2000
"""Largest number of numbers that seq prints."""


def print_text(words: Sequence[str], piped: str | None) -> str | None:
    """Return the output of a command; None if it is none of these.

    Args:
        words: The command.
        piped: The output of the command before a ``|``; None without one.

    >>> print_text(["basename", "/a/run.sh", ".sh"], None), print_text(["seq", "16", "8", "32"], None)
    ('run', '16 24 32')
    >>> print_text(["sed", "s#tests/#examples/#"], "/r/tests/x.yaml")
    '/r/examples/x.yaml'
    """
    program, *operands = words
    if piped is not None:
        return _replace(operands[0], piped) if program == "sed" and len(operands) == 1 else None
    if program in ("echo", "printf") and not any("%" in operand or operand.startswith("-") for operand in operands):
        return " ".join(operands)
    if program == "seq":
        return _print_numbers(operands)
    if program == "basename" and len(operands) == 2:
        return posixpath.basename(operands[0]).removesuffix(operands[1])
    return PATHS[program](operands[0]) if program in PATHS and len(operands) == 1 else None


def _replace(expression: str, text: str) -> str | None:
    """Return the text after ``sed``; None for an expression that is more than replacements of plain text."""
    for part in expression.split(";"):
        replacement = REPLACEMENT.fullmatch(part.strip())
        if replacement is None or not replacement[2]:
            return None
        # A dot stands for any character.
        text = re.sub(replacement[2], replacement[3], text, count=0 if replacement[4] else 1)
    return text


def _print_numbers(operands: Sequence[str]) -> str | None:
    """Return the output of ``seq LAST``, ``seq FIRST LAST`` or ``seq FIRST STEP LAST``, with blanks for line ends."""
    if not 1 <= len(operands) <= 3 or not all(re.fullmatch(r"-?\d{1,9}", operand) for operand in operands):
        return None
    numbers = [int(operand) for operand in operands]
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    listed = range(first, numbers[-1] + (1 if step > 0 else -1), step) if step else range(0)
    return " ".join(map(str, listed)) if len(listed) <= MOST else None


PATHS: Mapping[str, Callable[[str], str]] = {
    "dirname": lambda path: posixpath.dirname(path) or ".",
    "basename": posixpath.basename,
    "realpath": posixpath.normpath,
    "readlink": posixpath.normpath,
}
