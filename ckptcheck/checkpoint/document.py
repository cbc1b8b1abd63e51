"""Parses a JSON file that may be anything: a git-LFS pointer, a web page, a truncated or a hostile file."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import msgspec

LFS_MAGIC = b"version https://git-lfs"
HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")
ANSWER_STARTS = (
    b"<error", b"entry not found", b"repository not found", b"invalid username or password", b"access to model ",
)  # fmt: skip
"""The error bodies of S3 and the Hub, which `curl -o` writes in place of a file."""
UNCOUNTED, MOST_VALUES = 1 << 23, 1 << 22
"""Bytes of a JSON text whose values are not counted, and most values of a longer one, which take 500 MB at most. A tokenizer of
250,000 tokens has two million."""
MAX_DIGITS = 310
"""Digits of the longest integer that fits a double; safetensors refuses longer ones."""


class Defect(msgspec.Struct, frozen=True):
    """A defect in the form of a file."""

    kind: str
    """Machine-readable name, such as ``lfs-pointer``."""
    text: str
    """What is wrong, as a sentence without a full stop."""
    key: str | None = None
    """Tensor name or JSON path that the defect concerns."""
    names: tuple[str, ...] = ()
    """All tensors that it concerns, where `text` only counts them."""


def clip(text: str, most: int = 100) -> str:
    """Shorten a text taken from a file, so that a hostile file cannot fill a report.

    >>> clip("lm_head.weight"), clip("a" * 1000, most=10)
    ('lm_head.weight', 'aaaaaaaaaa… (1,000 characters)')
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def detect_foreign_format(beginning: bytes) -> Defect | None:
    """Recognise a git-LFS pointer or a web server's answer by its first bytes; None for any other file."""
    if beginning.startswith(LFS_MAGIC):
        return Defect("lfs-pointer", "this is a git-LFS pointer, a text of a few lines, not the file it stands for")
    start = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:32].lower()
    if start.startswith(HTML_STARTS):
        return Defect("html-page", "this is a web page, probably from a failed download")
    if start.startswith(ANSWER_STARTS):
        return Defect("html-page", "this is a web server's error message, probably from a failed download")
    return None


class DuplicateKeyDict(dict[str, Any]):
    """A JSON object with duplicate keys; the last value of a key counts, as in most parsers."""

    duplicates: tuple[str, ...] = ()
    """The keys that occur more than once."""


def parse_object(raw: bytes, *, strict: bool = False) -> tuple[dict[str, Any] | None, list[Defect]]:
    """Parse a JSON object; return it with its defects, or None with the defects that prevent parsing.

    Args:
        raw: the bytes of the file.
        strict: refuse NaN, numbers beyond a double and lone surrogates, as safetensors does and Python's parser does not.
            Loaders read configs and indexes with Python, so these are parsed as Python does.

    Kinds of defects: the kinds of `detect_foreign_format`, not-json, not-object, duplicate-key, byte-order-mark.
    """
    if (foreign := detect_foreign_format(raw[:64])) is not None:
        return None, [foreign]
    if not raw.strip():
        return None, [Defect("not-json", "the file is empty" if not raw else "the file holds only white space")]
    if len(raw) > UNCOUNTED and sum(map(raw.count, (b",", b"[", b"{"))) > MOST_VALUES:
        return None, [Defect("not-json", f"it holds more than {MOST_VALUES:,} values, which no such file does")]
    with_duplicates: list[DuplicateKeyDict] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        keys: set[str] = set()
        with_duplicates.append(DuplicateKeyDict(result))
        repeated = (key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        with_duplicates[-1].duplicates = tuple(dict.fromkeys(repeated))
        return with_duplicates[-1]

    numbers: dict[str, Any] = (
        {"parse_int": _integer, "parse_float": _fraction, "parse_constant": _refuse} if strict else {}
    )
    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=collect, **numbers)
        if strict:
            msgspec.json.decode(raw, type=msgspec.Raw)
    except UnicodeDecodeError as error:
        return None, [Defect("not-json", f"it is not UTF-8 text (byte {error.start})")]
    except json.JSONDecodeError as error:
        return None, [
            Defect(
                "not-json",
                f"it is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}",
            )
        ]
    except RecursionError:
        return None, [Defect("not-json", "its JSON is nested too deeply to be read")]
    except msgspec.MsgspecError as error:  # a ValueError too
        return None, [Defect("not-json", f"it is not strict JSON: {error}")]
    except ValueError:  # from `numbers`, and from int() for more than 4,300 digits
        return None, [Defect("not-json", "it holds a number that JSON does not have or that is too large to be read")]
    defects = [_duplicate_key(path) for path in _paths(value)] if with_duplicates else []
    if not isinstance(value, dict):
        return None, [*defects, Defect("not-object", f"it holds a JSON {json_kind(value)}, not an object")]
    if raw.startswith(b"\xef\xbb\xbf"):
        defects.append(
            Defect("byte-order-mark", "it begins with a byte order mark, which Python's JSON reader refuses")
        )
    return value, defects


def nesting_depth(value: Any, most: int) -> int:
    """Return how deeply lists and objects nest, counted up to `most` + 1; without recursion, as the value may be hostile."""
    level, depth = [value], 0
    while (level := [part for part in level if isinstance(part, (list, dict))]) and depth <= most:
        depth += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return depth


def _integer(text: str) -> int | float:
    # safetensors parses -0 as a float, not as an integer.
    if text == "-0":
        return -0.0
    return int(text) if len(text) <= MAX_DIGITS and not math.isinf(float(text)) else _refuse(text)


def _fraction(text: str) -> float:
    value = float(text)
    return value if not math.isinf(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _duplicate_key(path: str) -> Defect:
    return Defect("duplicate-key", "this key occurs twice, and readers disagree on which of the two counts", path)


def _paths(value: Any) -> list[str]:
    """Return the JSON paths of all duplicate keys: ``text_config.hidden_size``."""
    paths, pending = [], [("", value)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, DuplicateKeyDict):
            paths += [path + key for key in part.duplicates]
        if isinstance(part, dict):
            pending += [(f"{path}{key}.", inner) for key, inner in part.items() if isinstance(inner, (dict, list))]
        elif isinstance(part, list):
            pending += [
                (f"{path}{number}.", inner) for number, inner in enumerate(part) if isinstance(inner, (dict, list))
            ]
    return paths


def json_kind(value: object) -> str:
    """Return the JSON type of a value: list, string, number, …"""
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number", dict: "object"}
    return names.get(type(value), "null")
