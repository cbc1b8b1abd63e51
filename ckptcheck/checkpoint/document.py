"""Parses a JSON file that may be anything: a git-LFS pointer, a web page, half a file, a trap."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

LFS_MAGIC = b"version https://git-lfs"
HTML_STARTS = (b"<!doctype html", b"<html", b"<?xml")
ANSWER_STARTS = (
    b"<error", b"entry not found", b"repository not found", b"invalid username or password", b"access to model ",
)  # fmt: skip
"""What S3 and the Hub answer in place of a file, and what `curl -o` then writes into it."""
MAX_DIGITS = 310
"""No whole number with more digits fits a double; safetensors refuses those that do not."""


@dataclass(frozen=True)
class Defect:
    """Something wrong with a file's form. kind names it, text says what was seen, key is the tensor or JSON path."""

    kind: str
    text: str
    key: str | None = None


def clipped(text: str, most: int = 100) -> str:
    """Shorten what a file says, so that a hostile file cannot fill a report.

    >>> clipped("lm_head.weight"), clipped("a" * 1000, most=10)
    ('lm_head.weight', 'aaaaaaaaaa… (1,000 characters)')
    """
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def impostor(beginning: bytes) -> Defect | None:
    """Recognise what stands in the place of a real file by its first bytes: an LFS pointer or a web server's answer."""
    if beginning.startswith(LFS_MAGIC):
        return Defect("lfs-pointer", "this is a git-LFS pointer, a text of a few lines, not the file it stands for")
    start = beginning.lstrip(b"\xef\xbb\xbf \t\r\n")[:32].lower()
    if start.startswith(HTML_STARTS):
        return Defect("html-page", "this is a web page, not the file its name promises")
    if start.startswith(ANSWER_STARTS):
        return Defect("html-page", "this is a web server's error message, not the file its name promises")
    return None


class Doubled(dict[str, Any]):
    """A JSON object in which keys stand more than once; its value is the last, as with most parsers. twice: they."""

    twice: tuple[str, ...] = ()


def parse_object(raw: bytes, *, strict: bool = False) -> tuple[dict[str, Any] | None, list[Defect]]:
    """Parse a JSON object; what is wrong comes back as defects: `impostor` kinds, not-json, not-object, duplicate-key.

    strict: refuse, as safetensors does, what Python's parser lets through: NaN, numbers beyond a double, half a
    surrogate pair. Configs and indexes are read by Python, so for them it counts what Python takes.
    """
    if (found := impostor(raw[:64])) is not None:
        return None, [found]
    if not raw.strip():
        return None, [Defect("not-json", "the file is empty" if not raw else "the file holds only white space")]
    doubled: list[Doubled] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        seen: set[str] = set()
        doubled.append(Doubled(result))
        doubled[-1].twice = tuple(dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
        return doubled[-1]

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
    defects = [_twice(path) for path in _paths(value)] if doubled else []
    if not isinstance(value, dict):
        return None, [*defects, Defect("not-object", f"it holds a JSON {kind_of(value)}, not an object")]
    if raw.startswith(b"\xef\xbb\xbf"):
        defects.append(
            Defect("byte-order-mark", "it begins with a byte order mark, which Python's JSON reader refuses")
        )
    return value, defects


def depth(value: Any, most: int) -> int:
    """How deeply lists and objects nest, counted up to `most` + 1 (without recursion: the value may be a trap)."""
    level, reached = [value], 0
    while (level := [part for part in level if isinstance(part, (list, dict))]) and reached <= most:
        reached += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return reached


def _integer(text: str) -> int | float:
    if text == "-0":  # no whole number to safetensors, but a float
        return -0.0
    return int(text) if len(text) <= MAX_DIGITS and not math.isinf(float(text)) else _refuse(text)


def _fraction(text: str) -> float:
    value = float(text)
    return value if not math.isinf(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _twice(path: str) -> Defect:
    return Defect("duplicate-key", "this key stands twice, and which of the two counts depends on the reader", path)


def _paths(value: Any) -> list[str]:
    """Where keys stand twice: ``text_config.hidden_size``."""
    found, waiting = [], [("", value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, Doubled):
            found += [path + key for key in part.twice]
        if isinstance(part, dict):
            waiting += [(f"{path}{key}.", inner) for key, inner in part.items() if isinstance(inner, (dict, list))]
        elif isinstance(part, list):
            waiting += [
                (f"{path}{number}.", inner) for number, inner in enumerate(part) if isinstance(inner, (dict, list))
            ]
    return found


def kind_of(value: object) -> str:
    """Name the JSON kind of a value: list, string, number, …"""
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number", dict: "object"}
    return names.get(type(value), "null")
