"""Matches many regexes against many names at once, in a bounded number of steps.

Python's `re` backtracks and cannot be interrupted: ``(a+)+$`` from a hostile config would hang the scan. The consumers
only ask *whether* a pattern matches, so an automaton is enough: all patterns of a list are one automaton, it reads a name
once whatever the number of patterns, and names with a common parent share the reading of it. A pattern that needs more than
an automaton (backreferences, lookarounds over several characters, atomic groups) raises UnsupportedRegex, never a guess.

The language is that of Python's `re`. A test holds it to `re` with generated patterns and names (`regex_nfa` reads patterns
with `re`'s own parser, a private module: 29,000 of these comparisons agree on Python 3.11, 3.12 and 3.13).

The library `regex`, whose matches can have a deadline, is no replacement (regex 2026.11, on one machine):

- *The largest models*: the automaton matches 61 patterns against 140,000 modules, which only ``--consumers`` asks for, in 0.4 s.
  `regex` with a deadline for each match takes 15 s, or 8.5 s behind one pattern that joins all. The joined pattern shows only
  that some entry matches, and callers need to know which.
- *A hostile list* (``(a|aa)+$``, ``(.*.*.*)*x``): the automaton decides it in 1 ms. `regex` can use up the deadline, and then
  ckptcheck knows nothing about the list.
- *Patterns*: most consumers match with `re`, whose language differs from `regex`'s. The automaton leaves out one in ten of the
  hard patterns that the test generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ckptcheck.consumers.regex_nfa import Guard, States, Test, UnsupportedRegex

MAX_STEPS = 2_000_000
"""Most visits of states for one list of patterns: a second or two at worst."""

TOO_MANY_STEPS = "the patterns of this list take too many steps to match"
_EMPTY: frozenset[int] = frozenset()

_Fact = tuple[str, Test | None, frozenset[int], int | None, tuple[tuple[Guard, frozenset[int]], ...]]


@lru_cache(maxsize=4)
def compile_list(patterns: tuple[tuple[int, str], ...], *, full: bool) -> Automaton:
    """Return the automaton of a list. Consumers that read one list alike share it: 9,000 patterns take 100 MB and a second."""
    return Automaton(dict(patterns), full=full)


class _Node:
    """A set of states, sorted by what they read, and the node behind each pair of neighbouring characters."""

    __slots__ = ("accepts", "always", "chars", "ends", "guards", "states", "steps", "tests")

    def __init__(self, states: frozenset[int]) -> None:
        self.states = states
        self.accepts: frozenset[int]
        self.always: frozenset[int]
        self.chars: dict[str, frozenset[int]]
        self.tests: tuple[tuple[Test, frozenset[int]], ...]
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
        self._states = States()
        self._facts: dict[int, _Fact] = {}
        self._nodes: dict[frozenset[int], _Node] = {}
        starts: list[int] = []
        for number, pattern in patterns.items():
            try:
                starts += self._states.unfold(number, pattern, full=full)
            except UnsupportedRegex as reason:
                self.unsupported[number] = str(reason)
        self._ahead = self._states.ahead
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
        onward = node.always | node.chars.get(char, _EMPTY)
        for test, states in node.tests:
            if test(char):
                onward |= states
        self.steps += 1 + len(node.tests)
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
        node_of_states = self._nodes.get(states)
        if node_of_states is not None:
            return node_of_states
        self.steps += len(states)
        if self.steps > MAX_STEPS:
            raise UnsupportedRegex(TOO_MANY_STEPS)
        node = self._nodes[states] = _Node(states)
        chars: dict[str, list[frozenset[int]]] = {}
        any_char: list[frozenset[int]] = []
        tests: list[tuple[Test, frozenset[int]]] = []
        guarded: list[tuple[Guard, frozenset[int]]] = []
        accepted: list[int] = []
        for number in states:
            char, test, after, accepts, guards = self._facts.get(number) or self._fact(number)
            if char:
                chars.setdefault(char, []).append(after)
            elif test is bool:
                any_char.append(after)
            elif test is not None:
                tests.append((test, after))
            elif accepts is not None:
                accepted.append(accepts)
            guarded += guards
        node.chars = {char: _join(reached) for char, reached in chars.items()}
        # most nodes have few of these, and a hostile list has 100,000 nodes: what is empty is shared
        node.always = _join(any_char)
        node.accepts = frozenset(accepted)
        node.tests, node.guards = tuple(tests), tuple(guarded)
        return node

    def _fact(self, number: int) -> _Fact:
        """Return the facts about a state that a node needs, computed once."""
        state = self._states[number]
        after = self._closure(state.after) if state.test is not None else _EMPTY
        guards = tuple((guard, self._closure(target)) for guard, target in state.free if guard is not None)
        fact = self._facts[number] = (state.char, state.test, after, state.accepts, guards)
        return fact

    def _closure(self, start: int) -> frozenset[int]:
        """Return the states reached without reading and without an assertion, except states that only lead on."""
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
        return frozenset(states)


def _join(sets: list[frozenset[int]]) -> frozenset[int]:
    """Return the union. A single set is shared, not copied."""
    return sets[0] if len(sets) == 1 else frozenset().union(*sets)
