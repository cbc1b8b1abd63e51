"""Parses a JSON file that may be anything: a git-LFS pointer, a web page, half a file, a trap."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

LFS_MAGIC = b"version https://git-lfs"
HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")


@dataclass(frozen=True)
class Defect:
    """Something wrong with a file's form. kind names it, text says what was seen, key is the tensor or JSON path."""

    kind: str
    text: str
    key: str | None = None


def impostor(beginning: bytes) -> Defect | None:
    """Recognise what stands in the place of a real file by its first bytes: an LFS pointer or a web page."""
    if beginning.startswith(LFS_MAGIC):
        return Defect("lfs-pointer", "this is a git-LFS pointer, a text of a few lines, not the file it stands for")
    if beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:16].lower().startswith(HTML_STARTS):
        return Defect("html-page", "this is a web page, not the file its name promises")
    return None


def parse_object(raw: bytes) -> tuple[dict[str, Any] | None, list[Defect]]:
    """Parse a JSON object; what is wrong comes back as defects: `impostor` kinds, not-json, not-object, duplicate-key."""
    if (found := impostor(raw[:64])) is not None:
        return None, [found]
    if not raw.strip():
        return None, [Defect("not-json", "the file is empty" if not raw else "the file holds only white space")]
    twice: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            seen: set[str] = set()
            twice.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return result

    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=collect)
    except UnicodeDecodeError as error:
        return None, [Defect("not-json", f"it is not UTF-8 text (byte {error.start})")]
    except json.JSONDecodeError as error:
        return None, [Defect("not-json", f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")]
    except RecursionError:
        return None, [Defect("not-json", "its JSON is nested too deeply to be read")]
    except ValueError as error:  # an integer of more than 4,300 digits
        return None, [Defect("not-json", f"it is not JSON that can be read: {error}")]
    defects = [Defect("duplicate-key", f"the key {key!r} stands twice in one object", key) for key in dict.fromkeys(twice)]
    if not isinstance(value, dict):
        return None, [*defects, Defect("not-object", f"it holds a JSON {_kind(value)}, not an object")]
    return value, defects


def _kind(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), "value")
