"""Reads TOML with the line of every value: tomllib parses the text, and a scan finds the line of each key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import VALUE_STEPS
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.text.toml_text import parse_toml

PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*"|'[^'\n]*')"""
HEADER = re.compile(rf"\s*+\[\[?\s*+({PART}(?:\s*+\.\s*+{PART})*+)\s*+\]\]?\s*+(?:#.*)?$")
ASSIGNMENT = re.compile(rf"\s*+({PART}(?:\s*+\.\s*+{PART})*+)\s*+=")
AT = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
DEEPEST = 60
"""Largest nesting depth: the code that follows tables is recursive."""


def read(text: str, name: str) -> Document:
    """Parse a TOML file. name: the file as the report names it.

    Raises CkptcheckError, with the line where it is known, for text that is not TOML or is nested too deeply.
    """
    try:
        value = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        position = AT.search(str(error))
        line = position[1] if position and position[1] else text.count("\n") + (not text.endswith("\n"))
        place = f"{name}:{line}"
        raise CkptcheckError(f"{place} is not TOML: {clip(AT.sub('', str(error)).strip())}") from error
    except (RecursionError, ValueError) as error:
        # ValueError: an int of more than 4,300 digits.
        raise CkptcheckError(
            f"{name} is nested too deeply, or holds a number too long, to be a configuration"
        ) from error
    document = Document()
    document.budget.spend(len(text) // 5, name)
    _flatten(value, "", _find_key_lines(text), document, name)
    return document


def _flatten(section: Mapping[str, Any], path: str, lines: Mapping[str, int], into: Document, name: str) -> None:
    """Put the values of a table and its subtables into a document as leaves."""
    for key, value in section.items():
        full_path = f"{path}.{key}" if path else key
        if full_path.count(".") > DEEPEST:
            raise CkptcheckError(f"{name} is nested too deeply to be a configuration")
        if isinstance(value, dict) and value:
            _flatten(value, full_path, lines, into, name)
        else:
            into.budget.spend(VALUE_STEPS + full_path.count("."), name)
            # Dates and times become text.
            plain = value if isinstance(value, (bool, int, float, str, list, dict)) else str(value)
            line = next((lines[part] for part in _list_path_and_parents(full_path) if part in lines), None)
            into.put(full_path, Leaf(plain, full_path, name, line))


def _list_path_and_parents(path: str) -> list[str]:
    """Return a path and its parents, innermost first: values of an inline table have the line of the table's key."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _find_key_lines(text: str) -> dict[str, int]:
    """Map each dotted path to its line.

    A multi-line string that looks like TOML can add paths that do not exist; no key asks for these.
    """
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            table = _unquote_key(header[1])
            lines.setdefault(table, number)
        elif assignment := ASSIGNMENT.match(line):
            key = _unquote_key(assignment[1])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _unquote_key(dotted: str) -> str:
    """Remove quotes and blanks from each part of a dotted key."""
    return ".".join(part.strip().strip("\"'") for part in re.findall(PART, dotted))
