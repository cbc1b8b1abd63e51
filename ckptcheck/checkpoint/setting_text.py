"""How messages name the settings of a config, their values and their types."""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard

from ckptcheck.checkpoint.resolved_config import Setting

Fault = tuple[str, str]
"""The JSON path, and what is wrong there, up to the clause on what transformers does about it."""


def describe(setting: Setting) -> str:
    """Describe a setting for a finding: its value, and whether config.json gives it."""
    value = f"{setting.value:,}" if is_int(setting.value) else write_value(setting.value)
    if setting.source == "config":
        return f"{setting.key_path} is {value}"
    return f"config.json has no {setting.key_path}, so transformers takes its default of {value}"


def write_value(value: Any) -> str:
    """Return a JSON value as a finding shows it; a long one is cut."""
    text = {True: "true", False: "false", None: "null"}.get(value) if value is None or isinstance(value, bool) else None
    if text is None:
        text = (
            f'"{value}"' if isinstance(value, str) else json.dumps(value) if isinstance(value, float) else repr(value)
        )
    return text if len(text) <= 60 else f"{text[:57]}..."


def name_type(hint: str) -> str:
    """Return a type in words: ``int | None`` is "an integer or null"."""
    words = {
        "int": "an integer",
        "float": "a number with a decimal point",
        "bool": "true or false",
        "str": "a text",
        "dict": "an object",
        "list": "a list",
        "None": "null",
        "tuple": "",
        "object": "",
    }
    parts = [part.strip() for part in re.sub(r"\[[^|]*\|[^]]*\]", "[]", hint).split(" | ")]
    named = [words.get(part, "a list" if part.startswith(("list", "Sequence")) else part) for part in parts]
    if {"int", "float"} <= set(parts):
        named = ["a number", *(name for name, part in zip(named, parts, strict=True) if part not in ("int", "float"))]
    kept = [name for name in dict.fromkeys(named) if name]
    return " or ".join(kept)


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, and not a bool."""
    return type(value) is int


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a number, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
