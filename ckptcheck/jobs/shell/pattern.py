"""Computes the operators of ``${NAME…}`` on known values, except defaults: they cut, replace and change case."""

from __future__ import annotations

import fnmatch
import re

LONGEST_PATTERN, LONGEST_VALUE = 60, 2000
CUTS = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
REPLACES = re.compile(r"(//?)((?:\\.|[^/\\])*)(?:/(.*))?", re.DOTALL)
PART = re.compile(r":\s*(-?\d+)(?::\s*(\d+))?")
CASES = {",,": str.lower, "^^": str.upper}


def apply_pattern(value: str, operator: str) -> str | None:
    r"""Apply ``${NAME<operator>}`` to a value; None if it is not one of these operators, or too long.

    >>> apply_pattern("org/Qwen3-8B.sh", "##*/"), apply_pattern("a.b.c", "%.*"), apply_pattern("a/b", "//\\//-")
    ('Qwen3-8B.sh', 'a.b', 'a-b')
    >>> apply_pattern("ABC", ",,"), apply_pattern("abcdef", ":1:2")
    ('abc', 'bc')
    """
    if len(value) > LONGEST_VALUE or len(operator) > LONGEST_PATTERN or operator.count("*") > 3 or "$" in operator:
        return None
    if operator in CASES:
        return CASES[operator](value)
    if part := PART.fullmatch(operator):
        start = int(part[1])
        start = max(0, len(value) + start) if start < 0 else start
        return value[start : start + int(part[2])] if part[2] else value[start:]
    if cut := CUTS.fullmatch(operator):
        return _cut(value, cut[1], cut[2])
    if replaces := REPLACES.fullmatch(operator):
        pattern = re.sub(r"\\(.)", r"\1", replaces[2])
        if any(sign in pattern for sign in "*?["):
            return None
        return value.replace(pattern, replaces[3] or "", -1 if replaces[1] == "//" else 1) if pattern else value
    return None


def _cut(value: str, sign: str, pattern: str) -> str:
    """Cut the shortest (``#``, ``%``) or longest (``##``, ``%%``) part that matches off the beginning or the end."""
    matches = re.compile(fnmatch.translate(pattern.strip("\"'"))).match
    lengths = range(len(value) + 1) if len(sign) == 1 else range(len(value), -1, -1)
    for length in lengths:
        if sign[0] == "#" and matches(value[:length]):
            return value[length:]
        if sign[0] == "%" and matches(value[len(value) - length :]):
            return value[: len(value) - length]
    return value
