"""Computes operators, methods and pure functions on the values of a Python script; MISSING is a result that is not known."""

from __future__ import annotations

import ast
import json
import operator
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from ckptcheck.jobs.python_source.values import (
    MISSING,
    Items,
    Piece,
    Table,
    Text,
    Unknown,
    Unset,
    Value,
    from_plain,
    spend_on_each,
    to_items,
    to_plain,
    to_truth,
)

LARGEST = 10**15
"""Largest absolute value of a number that is computed."""
MOST_ITEMS = 2000
"""Largest number of items of a list that is computed."""
LONGEST = 100_000
"""Largest number of characters of a text that is computed."""
OPERATORS: Mapping[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
ERRORS = (ArithmeticError, IndexError, RecursionError, TypeError, ValueError, re.error)
"""What a function raises for values that it does not take."""


def _same(text: str) -> str:
    return text


def _search(pattern: str, text: str) -> None:
    """Return nothing where a regular expression matches nowhere. Raises ValueError where it does, or could take long.

    It may repeat one thing, and no group: those take time by the square, or without end.
    """
    repeats = re.findall(r"\)?[*+{?]", pattern)
    if max(len(pattern), len(text)) > 200 or len(repeats) > 1 or ")" in "".join(repeats) or re.search(pattern, text):
        raise ValueError


def _range(*bounds: int) -> list[int]:
    numbers = range(*bounds)
    if len(numbers) > MOST_ITEMS:
        raise ValueError
    return list(numbers)


PURE: Mapping[str, Callable[..., object]] = {
    "abs": abs, "bool": bool, "float": float, "int": int, "max": max, "min": min, "range": _range, "round": round,
    "str": str, "sum": sum, "json.dumps": json.dumps, "os.path.abspath": _same, "os.path.basename": posixpath.basename,
    "os.path.dirname": posixpath.dirname, "os.path.join": posixpath.join, "os.path.normpath": posixpath.normpath,
    "os.path.realpath": _same, "pathlib.Path": posixpath.join, "re.match": _search, "re.search": _search, "shlex.join": shlex.join,
    "shlex.quote": shlex.quote, "shlex.split": shlex.split, "textwrap.dedent": _same,
}  # fmt: skip
"""Functions of known values."""
KEEP_TEXT = ("str", "pathlib.Path", "shlex.quote", "os.path.abspath", "os.path.realpath", "textwrap.dedent")
"""Those that return a text as it is, so that it keeps its places and its known parts."""
LISTS: Mapping[str, Callable[..., Sequence[Value]]] = {
    "list": _same, "tuple": _same, "set": _same, "reversed": lambda items: items[::-1],
    "enumerate": lambda items: [Items.of(pair) for pair in enumerate(items)],
    "zip": lambda *lists: [Items.of(group) for group in zip(*lists, strict=False)],
    "sorted": lambda items: sorted(spend_on_each(items), key=to_plain),
}  # fmt: skip
"""Functions that make a list of lists whose items may be unknown."""
SAME_PATH = ("absolute", "as_posix", "dedent", "expanduser", "resolve")
TEXT_METHODS = (
    "capitalize", "endswith", "isdigit", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "split",
    "splitlines", "startswith", "strip", "title", "upper",
)  # fmt: skip


def apply_operator(kind: ast.AST, *sides: Value) -> Value:
    """Return the value of an arithmetic operator, and of ``*`` and ``/`` with a text or list on the left."""
    left, right = sides[0], sides[-1]
    if all(isinstance(side, (int, float)) for side in sides):
        if isinstance(kind, ast.Pow) and not (abs(left) <= 4096 and 0 <= right <= 40):  # type: ignore[arg-type,operator]
            return MISSING
        try:
            value = OPERATORS[type(kind)](*sides) if type(kind) in OPERATORS else MISSING
        except ERRORS:
            return MISSING
        return value if isinstance(value, (int, float)) and abs(value) <= LARGEST else MISSING
    if isinstance(kind, ast.Mult) and isinstance(right, int):
        if isinstance(left, Items) and len(left.items) * right <= MOST_ITEMS:
            return Items.of(left.items * right)
        if isinstance(left, Text) and len(left.shown) * right <= LONGEST and len(left.pieces) * right <= MOST_ITEMS:
            return Text(left.pieces * right)
    if isinstance(kind, ast.Div) and isinstance(left, Text) and isinstance(right, Text) and left.pieces:
        return join_texts([left, right], "/")
    return MISSING


def join_texts(texts: Sequence[Text], separator: str = "") -> Value:
    """Join texts."""
    pieces: list[Piece] = []
    size = 0
    for number, text in enumerate(texts):
        if number and separator and text.pieces:
            pieces.append(Piece(separator, text.pieces[0].line, text.pieces[0].file))
        pieces += text.pieces
        size += sum(len(piece.text) for piece in text.pieces) + len(text.pieces)
        if size > 2 * LONGEST:
            return Unknown(f"it is a text of more than {2 * LONGEST:,} characters")
    return Text(tuple(piece for piece in pieces if piece.text or piece.reason))


def compare(kind: ast.cmpop, left: Value, right: Value) -> bool | None:
    """Whether a comparison holds; None if unknown. An unset variable is None."""
    left, right = (None if isinstance(side, Unset) else side for side in (left, right))
    if isinstance(kind, (ast.In, ast.NotIn)):
        contained = _contains(right, left)
        return contained if contained is None or isinstance(kind, ast.In) else not contained
    if (left is None or right is None) and isinstance(kind, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        is_none = left is right
        if not is_none and any(isinstance(side, Unknown) for side in (left, right)):
            return None
        return is_none is isinstance(kind, (ast.Eq, ast.Is))
    (one, why), (other, why_other) = to_plain(left), to_plain(right)
    try:
        return None if why or why_other else bool(OPERATORS[type(kind)](one, other))
    except TypeError:
        return None


def _contains(whole: Value, item: Value) -> bool | None:
    """Whether a list, dict or text contains a value; None if unknown."""
    plain, reason = to_plain(item)
    if reason:
        return None
    if isinstance(whole, Text):
        return (isinstance(plain, str) and plain in whole.shown) or (None if whole.reason else False)
    if isinstance(whole, Table):
        return plain in whole.slots if isinstance(plain, (str, int, float, type(None))) else None
    if isinstance(whole, Items):
        items = [to_plain(each) for each in spend_on_each(whole.items)]
        return any(not why and each == plain for each, why in items) or (
            None if any(why for _, why in items) else False
        )
    return None


def call_pure(name: str, arguments: Sequence[Value], line: int, file: str) -> Value:
    """Return the result of a pure function; MISSING for any other function, and for a result that is not known."""
    first = arguments[0] if arguments else None
    if name in LISTS:
        lists = [to_items(each) for each in arguments]
        try:
            return MISSING if None in lists else Items.of(LISTS[name](*lists or [()]))
        except TypeError:
            return MISSING
    if name == "len" and isinstance(first, (Items, Table)):
        return len(first.items if isinstance(first, Items) else first.slots)
    if name in ("any", "all") and isinstance(first, Items):
        truths = [to_truth(item) for item in spend_on_each(first.items)]
        return name == "any" if (name == "any") in truths else MISSING if None in truths else name == "all"
    if name not in PURE:
        return MISSING
    if (
        name in KEEP_TEXT
        and len(arguments) == 1
        and isinstance(first, Text)
        and (first.reason or name != "shlex.quote")
    ):
        return first
    plain = [to_plain(each) for each in arguments]
    reason = next((why for _, why in plain if why), "")
    if reason and name == "os.path.join":
        return join_texts(
            [each if isinstance(each, Text) else Text((Piece("", line, "", reason),)) for each in arguments], "/"
        )
    return Unknown(reason, line) if reason else _fold(PURE[name], [value for value, _ in plain], line, file)


def _fold(function: Callable[..., object], plain: Sequence[object], line: int, file: str) -> Value:
    """Return a function's result for known values."""
    try:
        result = function(*plain)
    except ERRORS:
        return MISSING
    return MISSING if isinstance(result, str) and len(result) > LONGEST else from_plain(result, line, file)


def call_text_method(owner: Text, name: str, arguments: Sequence[Value], line: int, file: str) -> Value:
    """Return the result of a method of a text, or of a path."""
    first = to_items(arguments[0]) if arguments else None
    if name == "join" and first is not None:
        return join_texts([text_of(item, line, file) for item in first], owner.shown)
    is_strip = name in ("strip", "rstrip", "lstrip") and not arguments
    if name in SAME_PATH or (is_strip and (owner.reason or len(owner.pieces) > 1)):
        # Blanks at the ends change no command; the places stay.
        return owner
    plain = [to_plain(each) for each in arguments]
    if reason := owner.reason or next((why for _, why in plain if why), ""):
        return Unknown(reason, line)
    values = [value for value, _ in plain]
    grown = owner.shown.count(str(values[0])) * len(str(values[1])) if name == "replace" and len(values) > 1 else 0
    if name not in TEXT_METHODS or grown > LONGEST:
        return MISSING
    return _fold(getattr(owner.shown, name), values, owner.pieces[0].line if owner.pieces else line, file)


def text_of(value: Value, line: int, file: str, shown: str = "an expression") -> Text:
    """Return a value as an f-string writes it. shown: the expression, in the reason of one that is not known."""
    if isinstance(value, Text):
        return value
    if value is None or isinstance(value, (int, float)):
        return Text((Piece(str(value), line, file),))
    reason = value.reason if isinstance(value, Unknown) else f"{shown} is known only when the script runs"
    return Text((Piece("", line, file, reason),))
