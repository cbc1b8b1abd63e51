"""Computes what a shell does without running anything: ``$((…))``, operators of ``${NAME…}``, and commands that only print a text.

Arithmetic has whole numbers, ``+ - * / %`` and brackets. Of the operators of ``${NAME…}``, those are here that cut, replace and
change case.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

LARGEST = 10**15
"""Largest absolute value of a result or intermediate result."""
LONGEST = 300
"""Largest length of an expression, in characters."""


def _quotient(dividend: int, divisor: int) -> int:
    """Divide as a shell does, which rounds towards zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda dividend, divisor: dividend - divisor * _quotient(dividend, divisor),
}


def evaluate(expression: str, variables: Callable[[str], str | None]) -> int | None:
    """Return the value of an expression; None if it is not valid.

    variables: returns the text of a shell variable; None if unknown.

    >>> evaluate("(A + 1) * 1024 / 2", {"A": "3"}.get)
    2048
    >>> evaluate("A ** 9", {"A": "3"}.get), evaluate("1 / 0", {}.get), evaluate("B + 1", {}.get)
    (None, None, None)
    """
    if len(expression) > LONGEST:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, variables)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, variables: Callable[[str], str | None]) -> int:
    """Return the value of a node of the syntax tree. Raises ValueError for any other expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.Name):
        value = int(variables(node.id) or "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, variables)
        value = -value if isinstance(node.op, ast.USub) else value
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        value = OPERATIONS[type(node.op)](_value(node.left, variables), _value(node.right, variables))
    else:
        raise ValueError
    if abs(value) > LARGEST:
        raise ValueError
    return value


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
