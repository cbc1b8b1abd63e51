"""Reads TOML after a check of how deeply its keys nest, because Python's parser takes time and memory quadratic in the depth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import read_regular_file, real_path

LARGEST = 1_000_000
"""Largest file that is read, in bytes."""
DEEPEST = 100
"""Most parts of a dotted key, because the parser takes time and memory quadratic in them."""
LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{1000}")
"""A number that Python reads, and refuses to write in decimal digits."""
DOTTED = re.compile(r"""("[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\n]*'|[A-Za-z0-9_-]+)|(\.)|[ \t]+|.|\n""")
"""A part of a key, a dot, blanks, or any other character."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises TOMLDecodeError, or ValueError for keys that nest too deeply and for numbers that are too long.

    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    """
    import tomllib

    if text.count(".") > DEEPEST and _count_parts(text) > DEEPEST:
        raise ValueError(f"it has a key of more than {DEEPEST} parts")
    if LONG_NUMBER.search(text):
        raise ValueError("it has a number of more than 1,000 digits")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_toml_file(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises CkptcheckError for one that is no regular file, is too large, or is not TOML."""
    try:
        raw = read_regular_file(real_path(path), LARGEST + 1)
        if len(raw) > LARGEST:
            raise CkptcheckError(f"{path} has more than 1 MB, and no settings have that")
        return parse_toml(raw.decode("utf-8").replace("\r\n", "\n"))
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CkptcheckError(f"{path} is not TOML: {error}") from error


def _count_parts(text: str) -> int:
    """Return the number of parts of the longest dotted key, or of what looks like one in a text."""
    most = parts = 0
    after_dot = False
    for match in DOTTED.finditer(text):
        if match[1]:
            parts = parts + 1 if after_dot else 1
            most = max(most, parts)
            after_dot = False
        elif match[2]:
            after_dot = parts > 0 and not after_dot
            parts = parts if after_dot else 0
        elif not match[0].isspace() or "\n" in match[0]:
            parts, after_dot = 0, False
    return most
