"""Every regular expression that reads foreign text takes time in proportion to its length.

The expressions are those that stand in the source. Each is attacked where it repeats: by what leads there, the repeated part again
and again, and a sign that does not match. One that takes its time by the square needs seconds for LENGTH signs, and one in
proportion a thousandth: the border lies between.
"""

from __future__ import annotations

import ast
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from tests.paths import ROOT

LENGTH = 20_000
SLOW = 0.3
"""Seconds of processor time."""
METHODS = {"match", "fullmatch", "search", "finditer", "findall", "sub", "subn", "split"}
BOUNDED = {
    r"\[[^|]*\|[^]]*\]": "it reads what transformers writes of its own types",
    r"Expected `array` of (?:at least )?length (\d+).*": "it reads the words of msgspec",
}
"""Expression → why the square of the length does no harm."""


@dataclass(frozen=True)
class Expression:
    """A regular expression in the source."""

    place: str
    pattern: str | bytes
    flags: int
    methods: frozenset[str]


@cache
def list_expressions() -> list[Expression]:
    """List the expressions that are written as a whole, with what is called of them."""
    found = []
    paths = [path for room in ("ckptcheck", "rules") for path in (ROOT / room).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    called: dict[tuple[Path | None, str], set[str]] = {}  # None: in a file that has the expression from another
    for path, tree in trees.items():
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                is_far = isinstance(node.value, ast.Attribute)
                name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                called.setdefault((None if is_far or name in imported else path, name), set()).add(node.attr)
    for path, tree in sorted(trees.items()):
        names = {
            id(node.value): target.id
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and node.value is not None
        }
        names |= {id(node.value): node.arg or "" for node in ast.walk(tree) if isinstance(node, ast.keyword)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if getattr(node.func.value, "id", "") != "re" or node.func.attr not in METHODS | {"compile"}:
                continue
            if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, (str, bytes)):
                name = names.get(id(node), "?")
                methods = called.get((path, name), set()) | called.get((None, name), set())
                methods = {node.func.attr} - {"compile"} or (methods or {"search"}) - {"split"}
                given = [*node.args[1:], *(word.value for word in node.keywords if word.arg == "flags")]
                flags = 0
                for part in (inner for argument in given for inner in ast.walk(argument)):
                    if (
                        isinstance(part, ast.Attribute)
                        and getattr(part.value, "id", "") == "re"
                        and part.attr.isupper()
                    ):
                        flags |= int(getattr(re, part.attr, 0))
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.append(Expression(place, node.args[0].value, flags, frozenset(methods)))
    return found


def write_sample(tree: Any, least: int = 0) -> str:
    """Write a text that the expression matches, or nearly; what is repeated stands `least` times at least."""
    text = ""
    for code, value in tree:
        if code in (codes.LITERAL, codes.NOT_LITERAL):
            text += chr(value) if code is codes.LITERAL else "b" if value != ord("b") else "c"
        elif code is codes.ANY:
            text += "a"
        elif code is codes.IN:
            text += _pick(value)
        elif code is codes.BRANCH:
            text += write_sample(value[1][0], least)
        elif code is codes.SUBPATTERN:
            text += write_sample(value[3], least)
        elif code is codes.ATOMIC_GROUP:
            text += write_sample(value, least)
        elif code in REPEATS:
            text += write_sample(value[2], least) * max(value[0], least)
    return text


REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
CLASSES = {codes.CATEGORY_DIGIT: "0", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a",
           codes.CATEGORY_NOT_DIGIT: "a", codes.CATEGORY_NOT_SPACE: "a", codes.CATEGORY_NOT_WORD: "-"}  # fmt: skip


def _pick(members: Any) -> str:
    if members[0][0] is codes.NEGATE:
        return next((sign for sign in "ab0 -_./\"'\n" if not any(_holds(member, sign) for member in members[1:])), "x")
    code, value = members[0]
    return chr(value) if code is codes.LITERAL else chr(value[0]) if code is codes.RANGE else CLASSES.get(value, "a")


def _holds(member: Any, sign: str) -> bool:
    code, value = member
    if code is codes.LITERAL:
        return bool(chr(value) == sign)
    if code is codes.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    classes = {codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_WORD: r"\w",
               codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_NOT_WORD: r"\W"}  # fmt: skip
    return value in classes and re.match(classes[value], sign) is not None


def list_pumps(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for each part that is repeated without end, what leads to it and what it repeats."""
    for item in tree:
        code, value = item
        inner: list[Any] = []
        if code in REPEATS:
            if value[1] > 1000:
                yield before, write_sample(value[2], 1)
                yield before + write_sample(value[2], 1), write_sample(value[2], 0)
            inner = [value[2]]
        elif code is codes.BRANCH:
            inner = value[1]
        elif code is codes.SUBPATTERN:
            inner = [value[3]]
        elif code is codes.ATOMIC_GROUP:
            inner = [value]
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            inner = [value[1]]
        for part in inner:
            yield from list_pumps(part, before)
        before += write_sample([item], 1)


def list_attacks(expression: Expression) -> Iterator[str]:
    """Yield long texts that lead the expression astray."""
    tree = parser.parse(expression.pattern, expression.flags & ~re.DEBUG)
    for before, pump in dict.fromkeys(list_pumps(tree)):
        for end in ("\0", "\n"):
            if pump:
                yield before + pump * (LENGTH // len(pump)) + end
            if before:
                yield before * (LENGTH // len(before)) + end
            if before and pump:
                yield (before + pump) * (LENGTH // len(before + pump)) + end


class _TooSlow(Exception):
    pass


def measure(expression: Expression) -> float:
    """Return the most seconds that an attack takes; SLOW and more is SLOW."""
    compiled: Any = re.compile(expression.pattern, expression.flags)
    most, is_searched = 0.0, bool(expression.methods - {"match", "fullmatch"})

    def stop(*_: object) -> None:
        raise _TooSlow

    old = signal.signal(signal.SIGVTALRM, stop)
    try:
        for attack in list_attacks(expression):
            text: Any = attack.encode("latin1", "replace") if isinstance(expression.pattern, bytes) else attack
            signal.setitimer(signal.ITIMER_VIRTUAL, SLOW)
            begun = time.process_time()
            if is_searched:
                for _ in compiled.finditer(text):
                    pass
            else:
                compiled.fullmatch(text)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            most = max(most, time.process_time() - begun)
    except _TooSlow:
        return SLOW
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    return most


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timer that ends a search")
def test_every_expression_is_linear() -> None:
    expressions = list_expressions()
    assert len(expressions) > 300
    slow = {
        f"{expression.place} {expression.pattern!r} {sorted(expression.methods)}"
        for expression in expressions
        if str(expression.pattern) not in BOUNDED and measure(expression) >= SLOW
    }
    assert slow == set()


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"a*a*b", r"x.*y.*z", r"\s+$", r"(a|aa)+$", r"([a-z]+\.)+x"])
def test_one_that_is_not_is_found(pattern: str) -> None:
    assert measure(Expression("here", pattern, 0, frozenset({"search"}))) >= SLOW


@pytest.mark.parametrize("pattern", [r"a++b", r"[a-z]*", r"(?>a+)b", r"\d{1,6}x", r"a(b|c)*d"])
def test_one_that_is_passes(pattern: str) -> None:
    assert measure(Expression("here", pattern, 0, frozenset({"match"}))) < SLOW
