"""Reads a line of a table that fixtures/learn_*.py generated from transformers: a table is long, and a scan needs few lines."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def whole_table(table: str) -> bytes:
    """Return a whole table, by the name of its file without ``.json``."""
    return (Path(__file__).parent / f"{table}.json").read_bytes()


@cache
def read_line(table: str, key: str) -> Any:
    """Return the value of a line of a table; None if it has no such line. The value must not be changed."""
    raw, opening = whole_table(table), f"\n{json.dumps(key)}: ".encode()
    start = raw.find(opening)
    if start < 0:
        return None
    start += len(opening)
    value = raw[start : raw.index(b"\n", start)].removesuffix(b",")
    return None if value == b"{" else json.loads(value)  # the key of a group of lines
