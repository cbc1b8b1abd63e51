"""Matches many regexes against many names at once, in a number of steps that is counted.

Python's `re` backtracks and cannot be interrupted: ``(a+)+$`` from a hostile config would hang the scan. The consumers
only ever ask *whether* a pattern matches, so an automaton is enough: all patterns of a list are one automaton, a name
is read once whatever the number of patterns, and names with a common parent share the reading of it. What needs more
than an automaton (backreferences, lookarounds over several characters) is named as not decided, never guessed.

The language is that of Python's `re`, held to it by a test with generated patterns and names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

MAX_STATES = 4_000
"""States that one pattern may unfold to; ``a{5000}`` is refused."""
MAX_LENGTH = 5_000
"""Characters of a pattern."""
MAX_STEPS = 2_000_000
"""Visits of a state that one list of patterns may cost: a second or two at worst."""

SPENT = "the patterns of this list take too many steps to match"
_NOTHING: frozenset[int] = frozenset()

Test = Callable[[str], bool]
Guard = Callable[[str, str], bool]
"""Whether a position between two characters ('' at the ends of the name) is one that an assertion means."""


class Undecided(Exception):
    """The automaton cannot tell; the reason is one clause."""


@dataclass(slots=True)
class _State:
    """One state: where it goes without reading, where by reading one character, which pattern it accepts.

    char: the only character that it reads, for speed; '' where `test` decides, which may be any character.
    """

    free: list[tuple[Guard | None, int]] = field(default_factory=list)
    char: str = ""
    test: Test | None = None
    after: int = -1
    accepts: int | None = None


_Fact = tuple[str, Test | None, frozenset[int], int | None, list[tuple[Guard, frozenset[int]]]]


class _Node:
    """A set of states, sorted by what they read, and where each pair of neighbouring characters leads from it."""

    __slots__ = ("accepts", "always", "chars", "ends", "guards", "states", "steps", "tests")

    def __init__(self, states: frozenset[int]) -> None:
        self.states = states
        self.accepts: set[int] = set()
        self.always: set[int] = set()
        self.chars: dict[str, frozenset[int]] = {}
        self.tests: list[tuple[Test, frozenset[int]]] = []
        self.guards: list[tuple[Guard, frozenset[int]]] = []
        self.steps: dict[str, tuple[_Node, frozenset[int]]] = {}
        self.ends: dict[str, frozenset[int]] = {}


class Automaton:
    """The patterns of one list. `match` returns which of them match a name.

    patterns: number → the pattern. full: whether the whole name has to match, else its beginning does.
    unfit: pattern number → why it was left out. steps: the states visited so far.
    """

    def __init__(self, patterns: Mapping[int, str], *, full: bool = False) -> None:
        self.unfit: dict[int, str] = {}
        self.steps = 0
        self._states: list[_State] = []
        self._full = full
        self._ahead: dict[int, list[tuple[int, bool]]] = {}
        self._next = -1
        self._facts: dict[int, _Fact] = {}
        self._nodes: dict[frozenset[int], _Node] = {}
        starts = [start for number, pattern in patterns.items() for start in self._add(number, pattern)]
        self._start = self._node(frozenset(state for start in starts for state in self._closure(start)))
        self._parents: dict[str, tuple[_Node, frozenset[int]]] = {"": (self._start, frozenset())}

    def match(self, name: str) -> frozenset[int]:
        """Return the numbers of the patterns that match. Raises Undecided where the steps are used up."""
        if not self._start.states:
            return frozenset()
        if self.steps > MAX_STEPS:
            raise Undecided(SPENT)
        if "\n" in name:
            raise Undecided("the name has a line break")
        cut = name.rfind(".") + 1
        node, found = self._read(name, cut, len(name), *self._parent(name, cut))
        last = name[-1:]
        end = node.ends.get(last)
        if end is None:
            end = node.ends[last] = frozenset(self._settle(node, last, "").accepts)
        if end:
            found |= end
        if not self._ahead:
            return found
        return frozenset(
            number
            for number in found
            if number >= 0 and all((ahead in found) != negated for ahead, negated in self._ahead.get(number, ()))
        )

    def _parent(self, name: str, cut: int) -> tuple[_Node, frozenset[int]]:
        """Return where reading the name up to a component leads; components that names share are read once."""
        known = self._parents.get(name[:cut])
        if known is None:
            before = name.rfind(".", 0, cut - 1) + 1
            known = self._parents[name[:cut]] = self._read(name, before, cut, *self._parent(name, before))
        return known

    def _read(
        self, name: str, start: int, end: int, node: _Node, found: frozenset[int]
    ) -> tuple[_Node, frozenset[int]]:
        for index in range(start, end):
            pair = name[index - 1 : index + 1] if index else name[0]
            step = node.steps.get(pair)
            if step is None:
                step = node.steps[pair] = self._step(node, pair[:-1], pair[-1])
            node, new = step
            if new:
                found |= new
        return node, found

    def _step(self, node: _Node, before: str, char: str) -> tuple[_Node, frozenset[int]]:
        """Return the node behind a character, and the patterns that match before it."""
        node = self._settle(node, before, char)
        onward = node.always | node.chars.get(char, _NOTHING)
        for test, states in node.tests:
            if test(char):
                onward |= states
        self.steps += 1 + len(node.tests)
        return self._node(frozenset(onward)), frozenset(node.accepts)

    def _settle(self, node: _Node, before: str, char: str) -> _Node:
        """Go through the assertions that hold between two characters, '' at the name's ends."""
        while node.guards:
            reached = node.states.union(*(states for guard, states in node.guards if guard(before, char)))
            self.steps += len(node.guards)
            if reached == node.states:
                break
            node = self._node(reached)
        return node

    def _node(self, states: frozenset[int]) -> _Node:
        known = self._nodes.get(states)
        if known is not None:
            return known
        self.steps += len(states)
        if self.steps > MAX_STEPS:
            raise Undecided(SPENT)
        node = self._nodes[states] = _Node(states)
        chars: dict[str, list[frozenset[int]]] = {}
        for number in states:
            char, test, after, accepts, guards = self._facts.get(number) or self._fact(number)
            if char:
                chars.setdefault(char, []).append(after)
            elif test is bool:
                node.always |= after
            elif test is not None:
                node.tests.append((test, after))
            elif accepts is not None:
                node.accepts.add(accepts)
            if guards:
                node.guards += guards
        node.chars = {char: frozenset().union(*reached) for char, reached in chars.items()}
        return node

    def _fact(self, number: int) -> _Fact:
        """Return what a node needs of a state, put together once."""
        state = self._states[number]
        after = self._closure(state.after) if state.test is not None else _NOTHING
        guards = [(guard, self._closure(target)) for guard, target in state.free if guard is not None]
        fact = self._facts[number] = (state.char, state.test, after, state.accepts, guards)
        return fact

    def _closure(self, start: int) -> frozenset[int]:
        """Return the states that are reached without reading and without an assertion, those that only pass on left out."""
        seen, pending, found = {start}, [start], []
        while pending:
            number = pending.pop()
            state = self._states[number]
            if state.test is not None or state.accepts is not None or any(guard is not None for guard, _ in state.free):
                found.append(number)
            for guard, target in state.free:
                if guard is None and target not in seen:
                    seen.add(target)
                    pending.append(target)
        return frozenset(found)

    def _add(self, number: int, pattern: str) -> list[int]:
        """Unfold one pattern into states and return the first ones, none where it is left out."""
        mark = len(self._states)
        try:
            if len(pattern) > MAX_LENGTH:
                raise Undecided(f"the pattern has more than {MAX_LENGTH:,} characters")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = _parser.parse(pattern)
            items, flags = list(tree), tree.state.flags
            starts, ahead = [], []
            while items and _opening(items[0]):
                name, value = items.pop(0)
                if name is not op.AT:  # a lookahead at the beginning is a pattern of its own
                    self._next -= 1
                    ahead.append((self._next, name is op.ASSERT_NOT))
                    starts.append(self._sequence(value[1], self._state(accepts=self._next), flags, mark))
            accept = self._state(accepts=number)
            if self._full:
                accept = self._state(free=[(_at_end, accept)])
            starts.append(self._sequence(items, accept, flags, mark))
        except Undecided as reason:
            self.unfit[number] = str(reason)
        except (RecursionError, OverflowError):
            self.unfit[number] = "the pattern is nested too deeply"
        else:
            if ahead:
                self._ahead[number] = ahead
            return starts
        del self._states[mark:]
        return []

    def _state(self, **values: Any) -> int:
        self._states.append(_State(**values))
        return len(self._states) - 1

    def _sequence(self, items: Sequence[Any], after: int, flags: int, mark: int) -> int:
        """Build items from the last to the first, each leading to the one behind it; return the first state."""
        for name, value in reversed(list(items)):
            if len(self._states) - mark > MAX_STATES:
                raise Undecided("the pattern unfolds to too many states")
            after = self._item(name, value, after, flags, mark)
        return after

    def _item(self, name: Any, value: Any, after: int, flags: int, mark: int) -> int:
        if name in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            single = name is op.LITERAL and not flags & re.IGNORECASE
            return self._state(char=chr(value) if single else "", test=_test(name, value, flags), after=after)
        if name is op.BRANCH:
            return self._state(free=[(None, self._sequence(branch, after, flags, mark)) for branch in value[1]])
        if name is op.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(inner, after, (flags | added) & ~removed, mark)
        if name in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(*value, after=after, flags=flags, mark=mark)
        if name is op.AT:
            return self._state(free=[(_position(value), after)])
        if name in (op.ASSERT, op.ASSERT_NOT):
            direction, inner = value
            return self._state(free=[(_around(direction, inner, flags, negated=name is op.ASSERT_NOT), after)])
        raise Undecided(f"the pattern uses {str(name).lower().replace('_', ' ')}, which is not evaluated")

    def _repeat(self, least: int, most: Any, inner: Sequence[Any], *, after: int, flags: int, mark: int) -> int:
        if least > MAX_STATES or (most is not op.MAXREPEAT and most > MAX_STATES):
            raise Undecided("the pattern unfolds to too many states")
        if most is op.MAXREPEAT:
            loop = self._state(free=[(None, after)])
            self._states[loop].free.append((None, self._sequence(inner, loop, flags, mark)))
            first = loop
        else:
            first = after
            for _ in range(most - least):
                first = self._state(free=[(None, after), (None, self._sequence(inner, first, flags, mark))])
        for _ in range(least):
            first = self._sequence(inner, first, flags, mark)
        return first


def _test(name: Any, value: Any, flags: int) -> Test:
    """Return what tells whether one character is meant: compiled by `re` itself, so sets and cases are its own."""
    if name is op.LITERAL and not flags & re.IGNORECASE:
        return chr(value).__eq__
    if name is op.ANY:
        return bool  # no name has a line break
    parsed = _parser.SubPattern(_parser.State(), [(name, value)])
    parsed.state.flags = flags & ~re.VERBOSE
    compiled = _compile(parsed, flags & ~re.VERBOSE)
    return lambda char: compiled.match(char) is not None


def _compile(parsed: Any, flags: int) -> re.Pattern[str]:
    from re import _compiler  # type: ignore[attr-defined]

    return _compiler.compile(parsed, flags)  # type: ignore[no-any-return]


def _opening(item: tuple[Any, Any]) -> bool:
    """Whether it only looks at the name's beginning: ``^``, or a lookahead before anything is read."""
    name, value = item
    if name is op.AT:
        return value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
    return name in (op.ASSERT, op.ASSERT_NOT) and value[0] > 0


def _at_end(_: str, after: str) -> bool:
    return not after


def _word(char: str) -> bool:
    return bool(char) and (char.isalnum() or char == "_")


def _position(value: Any) -> Guard:
    """Return the guard of a position. No name has a line break (see `match`), so ``$`` is the end and MULTILINE nothing."""
    if value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
        return lambda before, after: not before
    if value in (op.AT_END, op.AT_END_STRING):
        return _at_end
    if value is op.AT_BOUNDARY:
        return lambda before, after: _word(before) != _word(after)
    if value is op.AT_NON_BOUNDARY:
        # in an empty name it never holds: that is so before Python 3.14
        return lambda before, after: bool(before or after) and _word(before) == _word(after)
    raise Undecided("the pattern uses an assertion that is not evaluated")


def _around(direction: int, inner: Sequence[Any], flags: int, *, negated: bool) -> Guard:
    """Return the guard of a lookahead or lookbehind over at most one character."""
    items = list(inner)
    if len(items) != 1:
        raise Undecided("the pattern looks around over several characters, which is not evaluated")
    name, value = items[0]
    if name is op.SUBPATTERN and value[1] == value[2] == 0:
        return _around(direction, value[3], flags, negated=negated)
    if name is op.BRANCH:
        guards = [_around(direction, branch, flags, negated=False) for branch in value[1]]
        return lambda before, after: any(guard(before, after) for guard in guards) != negated
    if name is op.AT:
        position = _position(value)
        return lambda before, after: position(before, after) != negated
    if name not in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        raise Undecided("the pattern looks around over several characters, which is not evaluated")
    test = _test(name, value, flags)

    def guard(before: str, after: str) -> bool:
        char = after if direction > 0 else before
        return (bool(char) and test(char)) != negated

    return guard
