"""Matches many regexes against many names at once, in a bounded number of steps.

Python's `re` backtracks and cannot be interrupted: ``(a+)+$`` from a hostile config would hang the scan. The consumers
only ask *whether* a pattern matches, so an automaton is enough: all patterns of a list are one automaton, it reads a name
once whatever the number of patterns, and names with a common parent share the reading of it. A pattern that needs more than
an automaton (backreferences, lookarounds over several characters, atomic groups) raises UnsupportedRegex, never a guess.

The language is that of Python's `re`, whose own parser, a private module, reads the patterns, and which compiles every test of a
character. A test holds the automaton to `re` with generated patterns and names.

The library `regex`, whose matches can have a deadline, is no replacement (regex 2026.11, on one machine): 61 patterns against
140,000 modules, which only ``--consumers`` asks for, take 15 s where the automaton takes 0.4 s, or 8.5 s behind one pattern that
joins all and does not say which entry matches; on a hostile list it uses up the deadline, and then nothing is known; and its
language differs from that of `re`, which most consumers match with.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import msgspec

MAX_STEPS = 2_000_000
"""Most visits of states for one list of patterns: a second or two at worst."""
MAX_STATES = 4_000
"""Most states of one pattern: ``a{5000}`` would cost as many steps per character, and is refused."""
MAX_LENGTH = 5_000
"""Most characters of a pattern, because time and states grow with them. A longer pattern raises UnsupportedRegex."""
TOO_MANY_STEPS = "the patterns of this list take too many steps to match"
_CHARACTERS = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_EMPTY: frozenset[int] = frozenset()

Test = Callable[[str], object]
Guard = Callable[[str, str], bool]
"""Whether an assertion holds between two characters ('' at the ends of the name)."""


class UnsupportedRegex(Exception):
    """The automaton cannot evaluate a pattern; the message says why, as one clause."""


class _State(msgspec.Struct):
    """One state. Others refer to it by its place in the list of all states."""

    free: Sequence[tuple[Guard | None, int]] = ()
    """The states that it reaches without reading a character, if the guard (if any) allows it."""
    test: Test | None = None
    """Decides whether it reads a character."""
    after: int = -1
    """The state that it reaches by reading."""
    accepts: int | None = None
    """The number of the pattern that matches here."""


class _Unfolding:
    """Appends the states of one pattern to those of a list."""

    def __init__(self, states: list[_State]) -> None:
        self._states = states
        self._left = MAX_STATES

    def add(self, **values: Any) -> int:
        self._spend()
        self._states.append(_State(**values))
        return len(self._states) - 1

    def sequence(self, items: Iterable[Any], after: int, flags: int) -> int:
        """Build items from the last to the first, each leading to the one behind it; return the first state."""
        self._spend()
        for name, value in reversed(list(items)):
            after = self._item(name, value, after, flags)
        return after

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnsupportedRegex("the pattern unfolds to too many states")

    def _item(self, name: Any, value: Any, after: int, flags: int) -> int:
        if name in _CHARACTERS:
            return self.add(test=_test(name, value, flags), after=after)
        if name is op.BRANCH:
            return self.add(free=[(None, self.sequence(branch, after, flags)) for branch in value[1]])
        if name is op.SUBPATTERN:
            _, added, removed, inner = value
            return self.sequence(inner, after, (flags | added) & ~removed)
        if name in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(value, after, flags)
        if name in (op.AT, op.ASSERT, op.ASSERT_NOT):
            return self.add(free=[(_guard(name, value, flags), after)])
        raise UnsupportedRegex(f"the pattern uses {str(name).lower().replace('_', ' ')}, which is not evaluated")

    def _repeat(self, value: Any, after: int, flags: int) -> int:
        least, most, inner = value
        first = after
        if most is op.MAXREPEAT:
            first = self.add()
            self._states[first].free = [(None, after), (None, self.sequence(inner, first, flags))]
        else:
            for _ in range(most - least):
                first = self.add(free=[(None, after), (None, self.sequence(inner, first, flags))])
        for _ in range(least):
            first = self.sequence(inner, first, flags)
        return first


def _compile(name: Any, value: Any, flags: int) -> re.Pattern[str]:
    """Compile one item of a parsed pattern by itself."""
    from re import _compiler  # type: ignore[attr-defined]

    parsed = _parser.SubPattern(_parser.State(), [(name, value)])
    parsed.state.flags = flags & ~re.VERBOSE
    return _compiler.compile(parsed, flags & ~re.VERBOSE)  # type: ignore[no-any-return]


def _test(name: Any, value: Any, flags: int) -> Test:
    """Return a test for one character, compiled by `re` itself, so that sets and cases are its own."""
    if name is op.LITERAL and not flags & re.IGNORECASE:
        return _literal_test(value)
    if name is op.ANY:
        # ``.`` matches every character but a line break, which no name has
        return bool
    return _compile(name, value, flags).match


@lru_cache(maxsize=256)
def _literal_test(code: int) -> Test:
    """Return the test for one character: states share it, since a list of 9,000 patterns has 600,000 of them."""
    return chr(code).__eq__


def _guard(name: Any, value: Any, flags: int) -> Guard:
    """Return the guard of an assertion that looks at the two characters beside it and no further."""
    if name is not op.AT:
        direction, items = value[0], list(value[1])
        while len(items) == 1 and items[0][0] is op.SUBPATTERN and items[0][1][1] == items[0][1][2] == 0:
            items = list(items[0][1][3])
        if not _is_single(items):
            raise UnsupportedRegex("the pattern looks around over several characters, which is not evaluated")
        value = direction, _parser.SubPattern(_parser.State(), items)
    compiled = _compile(name, value, flags)
    return lambda before, after: compiled.match(before + after, len(before)) is not None


def _is_single(items: Iterable[Any]) -> bool:
    """Whether items are one character, one position, or a choice between such."""
    found = list(items)
    if len(found) != 1:
        return False
    name, value = found[0]
    return name in (*_CHARACTERS, op.AT) or (name is op.BRANCH and all(map(_is_single, value[1])))


@lru_cache(maxsize=4)
def compile_list(patterns: tuple[tuple[int, str], ...], *, full: bool) -> Automaton:
    """Return the automaton of a list. Consumers that read one list alike share it: 9,000 patterns take 100 MB and a second."""
    return Automaton(dict(patterns), full=full)


class _Node:
    """A set of states, sorted by what they read, and the node behind each pair of neighbouring characters."""

    __slots__ = ("accepts", "ends", "guards", "reads", "states", "steps")

    def __init__(self, states: frozenset[int]) -> None:
        self.states = states
        self.accepts: frozenset[int]
        self.reads: tuple[tuple[Test, frozenset[int]], ...]
        self.guards: tuple[tuple[Guard, frozenset[int]], ...]
        self.steps: dict[str, tuple[_Node, frozenset[int]]] = {}
        self.ends: dict[str, frozenset[int]] = {}


class Automaton:
    """The patterns of one list. `match` returns which of them match a name."""

    def __init__(self, patterns: Mapping[int, str], *, full: bool = False) -> None:
        """Compile patterns, each under its number. full: whether the whole name has to match, or only its beginning."""
        self.unsupported: dict[int, str] = {}
        """Pattern number → why the automaton leaves it out."""
        self.steps = 0
        """The states visited so far."""
        self._states: list[_State] = []
        self._ahead: dict[int, list[tuple[int, bool]]] = {}
        """Pattern number → the lookaheads at its beginning: each is a pattern with a negative number of its own, and
        whether it is negated."""
        self._nodes: dict[frozenset[int], _Node] = {}
        self._closures: dict[int, frozenset[int]] = {}
        starts: list[int] = []
        for number, pattern in patterns.items():
            mark = len(self._states)
            try:
                starts += self._unfold(number, pattern, full=full)
            except (UnsupportedRegex, RecursionError, OverflowError) as error:
                del self._states[mark:]
                is_deep = not isinstance(error, UnsupportedRegex)
                self.unsupported[number] = "the pattern is nested too deeply" if is_deep else str(error)
        self._start = self._node(frozenset(state for start in starts for state in self._closure(start)))
        self._parents: dict[str, tuple[_Node, frozenset[int]]] = {"": (self._start, frozenset())}

    def match(self, name: str) -> frozenset[int]:
        """Return the numbers of the patterns that match. Raises UnsupportedRegex if the steps are used up."""
        if not self._start.states:
            return frozenset()
        if self.steps > MAX_STEPS:
            raise UnsupportedRegex(TOO_MANY_STEPS)
        if "\n" in name:
            raise UnsupportedRegex("the name has a line break")
        cut = name.rfind(".") + 1
        node, matches = self._read(name, cut, len(name), *self._parent(name, cut))
        last = name[-1:]
        end = node.ends.get(last)
        if end is None:
            end = node.ends[last] = self._settle(node, last, "").accepts
        if end:
            matches |= end
        if not self._ahead:
            return matches
        return frozenset(
            number
            for number in matches
            if number >= 0 and all((ahead in matches) != negated for ahead, negated in self._ahead.get(number, ()))
        )

    def _unfold(self, number: int, pattern: str, *, full: bool) -> list[int]:
        """Add the states of a pattern and return its start states."""
        if len(pattern) > MAX_LENGTH:
            raise UnsupportedRegex(f"the pattern has more than {MAX_LENGTH:,} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parser.parse(pattern)
        items, flags, unfolding = list(tree), tree.state.flags, _Unfolding(self._states)
        starts, ahead = [], []
        while items and _is_opening(*items[0]):
            name, value = items.pop(0)
            # a lookahead at the beginning is a pattern of its own, numbered by its state
            if name is not op.AT:
                own = -2 - len(self._states)
                ahead.append((own, name is op.ASSERT_NOT))
                starts.append(unfolding.sequence(value[1], unfolding.add(accepts=own), flags))
        accept = unfolding.add(accepts=number)
        if full:
            accept = unfolding.add(free=[(lambda before, after: not after, accept)])
        starts.append(unfolding.sequence(items, accept, flags))
        if ahead:
            self._ahead[number] = ahead
        return starts

    def _parent(self, name: str, cut: int) -> tuple[_Node, frozenset[int]]:
        """Return the node after the name up to a component. Shared parents of names are read once."""
        reading = self._parents.get(name[:cut])
        if reading is None:
            before = name.rfind(".", 0, cut - 1) + 1
            reading = self._parents[name[:cut]] = self._read(name, before, cut, *self._parent(name, before))
        return reading

    def _read(
        self, name: str, start: int, end: int, node: _Node, matches: frozenset[int]
    ) -> tuple[_Node, frozenset[int]]:
        for index in range(start, end):
            pair = name[index - 1 : index + 1] if index else name[0]
            step = node.steps.get(pair)
            if step is None:
                step = node.steps[pair] = self._step(node, pair[:-1], pair[-1])
            node, new = step
            if new:
                matches |= new
        return node, matches

    def _step(self, node: _Node, before: str, char: str) -> tuple[_Node, frozenset[int]]:
        """Return the node behind a character, and the patterns that match before it."""
        node = self._settle(node, before, char)
        self.steps += 1 + len(node.reads)
        onward = _EMPTY.union(*(states for test, states in node.reads if test(char)))
        return self._node(onward), node.accepts

    def _settle(self, node: _Node, before: str, char: str) -> _Node:
        """Follow the assertions that hold between two characters, '' at the name's ends."""
        while node.guards:
            reached = node.states.union(*(states for guard, states in node.guards if guard(before, char)))
            self.steps += len(node.guards)
            if reached == node.states:
                break
            node = self._node(reached)
        return node

    def _node(self, states: frozenset[int]) -> _Node:
        if (known := self._nodes.get(states)) is not None:
            return known
        self.steps += len(states)
        if self.steps > MAX_STEPS:
            raise UnsupportedRegex(TOO_MANY_STEPS)
        node = self._nodes[states] = _Node(states)
        reads: dict[Test, list[frozenset[int]]] = {}
        guards: list[tuple[Guard, frozenset[int]]] = []
        accepted: list[int] = []
        for number in states:
            state = self._states[number]
            if state.test is not None:
                reads.setdefault(state.test, []).append(self._closure(state.after))
            elif state.accepts is not None:
                accepted.append(state.accepts)
            guards += [(guard, self._closure(target)) for guard, target in state.free if guard is not None]
        # a single set is shared, not copied: a hostile list has 100,000 nodes
        node.reads = tuple((test, sets[0] if len(sets) == 1 else _EMPTY.union(*sets)) for test, sets in reads.items())
        node.accepts, node.guards = frozenset(accepted), tuple(guards)
        return node

    def _closure(self, start: int) -> frozenset[int]:
        """Return the states reached without reading and without an assertion, except states that only lead on."""
        if (known := self._closures.get(start)) is not None:
            return known
        visited, pending, states = {start}, [start], []
        while pending:
            number = pending.pop()
            state = self._states[number]
            if state.test is not None or state.accepts is not None or any(guard is not None for guard, _ in state.free):
                states.append(number)
            for guard, target in state.free:
                if guard is None and target not in visited:
                    visited.add(target)
                    pending.append(target)
        found = self._closures[start] = frozenset(states)
        return found


def _is_opening(name: Any, value: Any) -> bool:
    """Whether an item only looks at the name's beginning: ``^``, or a lookahead before anything is read."""
    if name is op.AT:
        return value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
    return name in (op.ASSERT, op.ASSERT_NOT) and value[0] > 0
