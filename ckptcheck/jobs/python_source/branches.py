"""Writes of a Python script that can be taken back: the branches of an unknown condition, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Literal

from ckptcheck.jobs.budget import ITEMS, current_budget
from ckptcheck.jobs.python_source.values import (
    MISSING,
    MOST_ITEMS,
    Class,
    Function,
    Items,
    Piece,
    Reference,
    Slots,
    Text,
    Unknown,
    Value,
)

Outcome = Literal["return", "raise", "break", "continue"] | None
"""How a block of statements ends; None if it continues."""
MOST_DIFFERENT = 300
"""Most pieces in which two branches may differ: a value that every branch writes anew would double with each of them."""


class Heap:
    """Writes into frames, objects, lists and dicts."""

    def __init__(self) -> None:
        # For each open branch: (what is written to, key, the value before), in order.
        self.trails: list[list[tuple[Slots, Hashable, Value]]] = []

    def write(self, target: Slots, key: Hashable, value: Value) -> None:
        """Set a slot; MISSING removes it."""
        if self.trails:
            self.trails[-1].append((target, key, target.slots.get(key, MISSING)))
        _set(target, key, value[:MOST_ITEMS] if isinstance(value, tuple) else value)

    def branch(self, reason: str, bodies: Sequence[Callable[[], Outcome]]) -> Outcome:
        """Run alternative bodies, and merge what they write: a value that differs between them becomes unknown.

        Bodies that raise do not count. reason: why ckptcheck cannot decide which body runs. Returns how the bodies end: None if one
        of them continues.
        """
        ends: list[tuple[Outcome, dict[tuple[int, Hashable], tuple[Slots, Value]]]] = []
        for body in bodies:
            self.trails.append([])
            outcome = body()
            trail = self.trails.pop()
            written = {(id(slots), key): (slots, slots.slots.get(key, MISSING)) for slots, key, _ in trail}
            for slots, key, old in reversed(trail):
                _set(slots, key, old)
            ends.append((outcome, written))
        live = [end for end in ends if end[0] != "raise"]
        if not live:
            return "raise"
        going_on = [end for end in live if end[0] is None]
        states = [written for _, written in going_on or live]
        for place in dict.fromkeys(place for written in states for place in written):
            slots = next(written[place][0] for written in states if place in written)
            current = (slots, slots.slots.get(place[1], MISSING))
            values = [written.get(place, current)[1] for written in states]
            self.write(slots, place[1], merge(values, reason))
        return None if going_on else live[0][0]


def _set(target: Slots, key: Hashable, value: Value) -> None:
    if value is MISSING:
        target.slots.pop(key, None)
    else:
        target.slots[key] = value


def merge(values: Sequence[Value], reason: str) -> Value:
    """Return the common part of alternative values: a text or list keeps its equal beginning as known."""
    return reduce(lambda one, other: _merge_two(one, other, reason), values)


def _merge_two(one: Value, other: Value, reason: str) -> Value:
    if one is other or (type(one) is type(other) and not isinstance(one, (Slots, Unknown)) and one == other):
        return one
    if one is MISSING or other is MISSING:
        return _doubt(other if one is MISSING else one, reason)
    if isinstance(one, Text) and isinstance(other, Text):
        pieces = _merge_tuples(one.pieces, other.pieces, reason)
        return Unknown(reason) if pieces and isinstance(pieces[-1], Unknown) else Text(pieces)  # type: ignore[arg-type]
    if isinstance(one, Items) and isinstance(other, Items):
        return Items.of(_merge_tuples(one.items, other.items, reason))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return _merge_tuples(one, other, reason)
    return Unknown(reason)


def _merge_tuples(one: tuple[Value, ...], other: tuple[Value, ...], reason: str) -> tuple[Value, ...]:
    """Return the common beginning of two tuples, and the rest of both with the reason."""
    current_budget().spend((len(one) + len(other)) // ITEMS, "a Python script")
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    rests = (*one[length:], *other[length:])
    if len(rests) > MOST_DIFFERENT:
        return (*one[:length], Unknown(reason))
    return (*one[:length], *(_doubt(item, reason) for item in rests))


def _doubt(value: Value, reason: str) -> Value:
    """Return a value that only an undecided branch sets: still visible, but unknown for this reason."""
    if isinstance(value, Piece):
        return replace(value, reason=value.reason or reason)
    if isinstance(value, Text):
        return Text(tuple(replace(piece, reason=piece.reason or reason) for piece in value.pieces))
    if isinstance(value, Items):
        return Items.of(item if isinstance(item, Slots) else _doubt(item, reason) for item in value.items)
    return value if isinstance(value, (Slots, Reference, Function, Class, Unknown)) else Unknown(reason)
