"""Matches many regexes against many names at once, in a number of steps that is counted.

Python's `re` backtracks and cannot be interrupted: ``(a+)+$`` from a hostile config would hang the scan. The consumers
only ever ask *whether* a pattern matches, so an automaton is enough: all patterns of a list are one automaton, a name
is read once whatever the number of patterns, and names with a common parent share the reading of it. What needs more
than an automaton (backreferences, lookarounds over several characters) is named as not decided, never guessed.

The language is that of Python's `re`, held to it by a test with generated patterns and names.
"""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.dialects.unfold import Guard, States, Test, Undecided

MAX_STEPS = 2_000_000
"""Visits of a state that one list of patterns may cost: a second or two at worst."""

SPENT = "the patterns of this list take too many steps to match"
_NOTHING: frozenset[int] = frozenset()

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
        self._states = States()
        self._facts: dict[int, _Fact] = {}
        self._nodes: dict[frozenset[int], _Node] = {}
        starts: list[int] = []
        for number, pattern in patterns.items():
            try:
                starts += self._states.unfold(number, pattern, full=full)
            except Undecided as reason:
                self.unfit[number] = str(reason)
        self._ahead = self._states.ahead
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
