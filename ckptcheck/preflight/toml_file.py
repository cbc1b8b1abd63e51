"""TOML, with the line of every value: tomllib parses, and a scan of the text finds where each key stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.document import clipped
from ckptcheck.errors import CkptcheckError
from ckptcheck.preflight.document import Document, Leaf

PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
HEADER = re.compile(rf"\s*\[\[?\s*({PART}(?:\s*\.\s*{PART})*)\s*\]\]?\s*(?:#.*)?$")
ASSIGNMENT = re.compile(rf"\s*({PART}(?:\s*\.\s*{PART})*)\s*=")
AT = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
DEEPEST = 60


def read(text: str, name: str) -> Document:
    """Parse a TOML file. Raises CkptcheckError, with the line, for what is no TOML or nested too deeply."""
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found_at = AT.search(str(error))
        line = found_at[1] if found_at and found_at[1] else text.count("\n") + (not text.endswith("\n"))
        place = f"{name}:{line}"
        raise CkptcheckError(f"{place} is not TOML: {clipped(AT.sub('', str(error)).strip())}") from error
    except (RecursionError, ValueError) as error:  # ValueError: an int of more than 4,300 digits
        raise CkptcheckError(
            f"{name} is nested too deeply, or holds a number too long, to be a configuration"
        ) from error
    found = Document()
    _flatten(value, "", _lines(text), found, name)
    return found


def _flatten(section: Mapping[str, Any], path: str, lines: Mapping[str, int], into: Document, name: str) -> None:
    for key, value in section.items():
        whole = f"{path}.{key}" if path else key
        if whole.count(".") > DEEPEST:
            raise CkptcheckError(f"{name} is nested too deeply to be a configuration")
        if isinstance(value, dict) and value:
            _flatten(value, whole, lines, into, name)
        else:
            plain = value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)  # dates
            line = next((lines[part] for part in _upwards(whole) if part in lines), None)
            into.put(whole, Leaf(plain, whole, name, line))


def _upwards(path: str) -> list[str]:
    """The path, and what holds it: an inline table has the line of its key."""
    parts = path.split(".")
    return [".".join(parts[:number]) for number in range(len(parts), 0, -1)]


def _lines(text: str) -> dict[str, int]:
    """Path → line. A multi-line string that looks like TOML can add wrong ones, which no key has."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            table = _bare(header[1])
            lines.setdefault(table, number)
        elif assignment := ASSIGNMENT.match(line):
            key = _bare(assignment[1])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _bare(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in re.findall(PART, dotted))
