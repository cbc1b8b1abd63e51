"""Compiles a regex into the states of an automaton, as Python's own parser reads it.

What needs more than an automaton (backreferences, lookarounds over several characters) raises UnsupportedRegex, never a guess.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_STATES = 4_000
"""Most states of one pattern: ``a{5000}`` would cost as many steps per character, and is refused."""
MAX_LENGTH = 5_000
"""Most characters of a pattern, because time and states grow with them. A longer pattern raises UnsupportedRegex."""

Test = Callable[[str], bool]
Guard = Callable[[str, str], bool]
"""Whether an assertion holds between two characters ('' at the ends of the name)."""


class UnsupportedRegex(Exception):
    """The automaton cannot evaluate a pattern; the message says why, as one clause."""


@dataclass(slots=True)
class State:
    """One state of the automaton."""

    free: Sequence[tuple[Guard | None, int]] = ()
    """The states that it reaches without reading a character, if the guard (if any) allows it."""
    char: str = ""
    """The only character that it reads, for speed; '' if `test` decides."""
    test: Test | None = None
    """Decides whether it reads a character."""
    after: int = -1
    """The state that it reaches by reading."""
    accepts: int | None = None
    """The number of the pattern that matches here."""


class States(list[State]):
    """The states of several patterns. Other states refer to a state by its index."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[int, list[tuple[int, bool]]] = {}
        """Pattern number → the lookaheads at its beginning: each is a pattern with a negative number of its own, and
        whether it is negated."""
        self._next = -1

    def unfold(self, number: int, pattern: str, *, full: bool) -> list[int]:
        """Add the states of a pattern and return its start states.

        Args:
            number: the number under which matches report the pattern.
            pattern: a regex that `re` compiles.
            full: whether the whole name has to match, or only its beginning.

        Raises:
            UnsupportedRegex: if an automaton cannot evaluate it; then no state is added.

        """
        mark = len(self)
        try:
            return self._unfold(number, pattern, full, mark)
        except UnsupportedRegex:
            del self[mark:]
            raise
        except (RecursionError, OverflowError) as error:
            del self[mark:]
            raise UnsupportedRegex("the pattern is nested too deeply") from error

    def _unfold(self, number: int, pattern: str, full: bool, mark: int) -> list[int]:
        if len(pattern) > MAX_LENGTH:
            raise UnsupportedRegex(f"the pattern has more than {MAX_LENGTH:,} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parser.parse(pattern)
        items, flags = list(tree), tree.state.flags
        starts, ahead = [], []
        while items and _is_opening(items[0]):
            name, value = items.pop(0)
            # a lookahead at the beginning is a pattern of its own
            if name is not op.AT:
                self._next -= 1
                ahead.append((self._next, name is op.ASSERT_NOT))
                starts.append(self._sequence(value[1], self._state(accepts=self._next), flags, mark))
        accept = self._state(accepts=number)
        if full:
            accept = self._state(free=[(_at_end, accept)])
        starts.append(self._sequence(items, accept, flags, mark))
        if ahead:
            self.ahead[number] = ahead
        return starts

    def _state(self, **values: Any) -> int:
        self.append(State(**values))
        return len(self) - 1

    def _sequence(self, items: Sequence[Any], after: int, flags: int, mark: int) -> int:
        """Build items from the last to the first, each leading to the one behind it; return the first state."""
        for name, value in reversed(list(items)):
            if len(self) - mark > MAX_STATES:
                raise UnsupportedRegex("the pattern unfolds to too many states")
            after = self._item(name, value, after, flags, mark)
        return after

    def _item(self, name: Any, value: Any, after: int, flags: int, mark: int) -> int:
        if name in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            single = name is op.LITERAL and not flags & re.IGNORECASE
            return self._state(char=chr(value) if single else "", test=_char_test(name, value, flags), after=after)
        if name is op.BRANCH:
            return self._state(free=[(None, self._sequence(branch, after, flags, mark)) for branch in value[1]])
        if name is op.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, after, (flags | added) & ~removed, mark)
        if name in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(*value, after=after, flags=flags, mark=mark)
        if name is op.AT:
            return self._state(free=[(_position_guard(value), after)])
        if name in (op.ASSERT, op.ASSERT_NOT):
            direction, inner = value
            return self._state(
                free=[(_lookaround_guard(direction, inner, flags, negated=name is op.ASSERT_NOT), after)]
            )
        raise UnsupportedRegex(f"the pattern uses {str(name).lower().replace('_', ' ')}, which is not evaluated")

    def _repeat(self, least: int, most: Any, inner: Sequence[Any], *, after: int, flags: int, mark: int) -> int:
        if least > MAX_STATES or (most is not op.MAXREPEAT and most > MAX_STATES):
            raise UnsupportedRegex("the pattern unfolds to too many states")
        if most is op.MAXREPEAT:
            loop = self._state()
            self[loop].free = [(None, after), (None, self._sequence(inner, loop, flags, mark))]
            first = loop
        else:
            first = after
            for _ in range(most - least):
                first = self._state(free=[(None, after), (None, self._sequence(inner, first, flags, mark))])
        for _ in range(least):
            first = self._sequence(inner, first, flags, mark)
        return first


def _char_test(name: Any, value: Any, flags: int) -> Test:
    """Return a test for one character, compiled by `re` itself, so that sets and cases are its own."""
    if name is op.LITERAL and not flags & re.IGNORECASE:
        return _literal_test(value)
    if name is op.ANY:
        # ``.`` matches every character but a line break, which no name has
        return bool
    parsed = _parser.SubPattern(_parser.State(), [(name, value)])
    parsed.state.flags = flags & ~re.VERBOSE
    compiled = _compile(parsed, flags & ~re.VERBOSE)
    return lambda char: compiled.match(char) is not None


@lru_cache(maxsize=256)
def _literal_test(code: int) -> Test:
    """Return the test for one character: states share it, since a list of 9,000 patterns has 600,000 of them."""
    return chr(code).__eq__


def _compile(parsed: Any, flags: int) -> re.Pattern[str]:
    from re import _compiler  # type: ignore[attr-defined]

    return _compiler.compile(parsed, flags)  # type: ignore[no-any-return]


def _is_opening(item: tuple[Any, Any]) -> bool:
    """Whether it only looks at the name's beginning: ``^``, or a lookahead before anything is read."""
    name, value = item
    if name is op.AT:
        return value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
    return name in (op.ASSERT, op.ASSERT_NOT) and value[0] > 0


def _at_end(_: str, after: str) -> bool:
    return not after


def _is_word(char: str) -> bool:
    return bool(char) and (char.isalnum() or char == "_")


def _position_guard(value: Any) -> Guard:
    """Return the guard of a position. No name has a line break (see `match`), so ``$`` is the end, with or without MULTILINE."""
    if value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        return lambda before, after: not before
    if value in (op.AT_END, op.AT_END_STRING):
        return _at_end
    if value is op.AT_BOUNDARY:
        return lambda before, after: _is_word(before) != _is_word(after)
    if value is op.AT_NON_BOUNDARY:
        # it never holds in an empty name, as in Python before 3.14
        return lambda before, after: bool(before or after) and _is_word(before) == _is_word(after)
    raise UnsupportedRegex("the pattern uses an assertion that is not evaluated")


def _lookaround_guard(direction: int, inner: Sequence[Any], flags: int, *, negated: bool) -> Guard:
    """Return the guard of a lookahead or lookbehind over at most one character."""
    items = list(inner)
    if len(items) != 1:
        raise UnsupportedRegex("the pattern looks around over several characters, which is not evaluated")
    name, value = items[0]
    if name is op.SUBPATTERN and value[1] == value[2] == 0:
        return _lookaround_guard(direction, value[3], flags, negated=negated)
    if name is op.BRANCH:
        guards = [_lookaround_guard(direction, branch, flags, negated=False) for branch in value[1]]
        return lambda before, after: any(guard(before, after) for guard in guards) != negated
    if name is op.AT:
        position = _position_guard(value)
        return lambda before, after: position(before, after) != negated
    if name not in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        raise UnsupportedRegex("the pattern looks around over several characters, which is not evaluated")
    test = _char_test(name, value, flags)

    def guard(before: str, after: str) -> bool:
        char = after if direction > 0 else before
        return (bool(char) and test(char)) != negated

    return guard
