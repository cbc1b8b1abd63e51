"""The state of a Python script during reading: names in frames, and changes by the branches of an unknown condition."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptcheck.jobs.budget import ITEMS, current_budget
from ckptcheck.jobs.python_source.values import (
    MOST_ITEMS,
    Reference,
    Slots,
    Unknown,
    Value,
    merge,
    merge_items,
    unknown_if,
)

Outcome = Literal["return", "raise", "break", "continue"] | None
"""How a block of statements ends; None if it continues."""


class Missing:
    """Stands for a missing name or key."""


MISSING = Missing()


@dataclass(eq=False)
class Frame(Slots):
    """The names of a module or of a call of a function."""

    parent: Frame | None = None
    """The frame for names that this one lacks."""
    module: ModuleInfo | None = None
    """The module whose code runs."""
    returned: list[Value] = field(default_factory=list)
    """The values that the function may return."""
    global_names: set[str] = field(default_factory=set)
    """The names that ``global`` and ``nonlocal`` declare."""

    def find(self, name: str) -> Frame | None:
        """Return the frame that has a name; None if no frame has it."""
        frame: Frame | None = self
        while frame is not None and name not in frame.slots:
            frame = frame.parent
        return frame


@dataclass(eq=False)
class ModuleInfo:
    """A module that is read."""

    file: str
    """Its name for the report."""
    lines: list[str]
    """Its lines, in which the places of texts are looked up."""


@dataclass(eq=False)
class Function:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    """The frame in which it is defined."""
    defaults: dict[str, Value]
    """Parameter → its default."""
    owner: Value = MISSING
    """The object of a bound method, the class of a class method."""

    def __call__(self) -> None:
        """Mark the function as one for `callable`; the evaluator runs it."""


@dataclass(eq=False)
class Class:
    """A class of the script."""

    name: str
    frame: Frame
    """The definitions of its body: constants and methods."""
    fields: dict[str, Value]
    """Annotated names with their defaults (MISSING: none), those of base classes first."""
    bases: list[Value]

    def __call__(self) -> None:
        """Mark the class as callable."""

    def find_imported_base(self) -> str | None:
        """Return the dotted name of the first base that the script imports; None without one."""
        waiting: list[Value] = [self]
        for _ in range(MOST_ITEMS):
            cls = waiting.pop(0) if waiting else None
            if cls is None or isinstance(cls, Reference):
                return cls.name if cls is not None else None
            waiting += cls.bases if isinstance(cls, Class) else ()
        return None

    def find(self, name: str) -> Value:
        """Return a constant or method of the class or of its bases; MISSING without one."""
        waiting: list[Value] = [self]
        seen: set[int] = set()
        while waiting:
            cls = waiting.pop()
            # A common base of several classes is visited once.
            if not isinstance(cls, Class) or id(cls) in seen:
                continue
            seen.add(id(cls))
            if name in cls.frame.slots:
                return cls.frame.slots[name]
            waiting += reversed(cls.bases)
        current_budget().spend(len(seen) // ITEMS, "a Python script")
        return MISSING


class Heap:
    """Writes into frames, objects, lists and dicts, so that the writes of a branch can be taken back and merged."""

    def __init__(self) -> None:
        # For each open branch: (what is written to, key, the value before), in order.
        self.trails: list[list[tuple[Slots, Hashable, Value]]] = []

    def write(self, target: Slots, key: Hashable, value: Value) -> None:
        """Set a slot; MISSING removes it."""
        if self.trails:
            self.trails[-1].append((target, key, target.slots.get(key, MISSING)))
        if isinstance(value, tuple):
            value = value[:MOST_ITEMS]
        if value is MISSING:
            target.slots.pop(key, None)
        else:
            target.slots[key] = value

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
                if old is MISSING:
                    slots.slots.pop(key, None)
                else:
                    slots.slots[key] = old
            ends.append((outcome, written))
        live = [end for end in ends if end[0] != "raise"]
        if not live:
            return "raise"
        going_on = [end for end in live if end[0] is None]
        states = [written for _, written in going_on or live]
        for place in dict.fromkeys(place for written in states for place in written):
            slots = next(written[place][0] for written in states if place in written)
            key = place[1]
            current = slots.slots.get(key, MISSING)
            values = [written[place][1] if place in written else current for written in states]
            self.write(slots, key, _merge_all(values, reason))
        return None if going_on else live[0][0]


def _merge_all(values: Sequence[Value], reason: str) -> Value:
    """Merge the values of one slot after several branches."""
    merged = values[0]
    for value in values[1:]:
        if isinstance(merged, tuple) and isinstance(value, tuple):
            merged = merge_items(merged, value, reason)
        elif merged is MISSING or value is MISSING:
            there = value if merged is MISSING else merged
            merged = there if merged is value else MISSING if there is MISSING else unknown_if(there, reason)
        elif isinstance(merged, tuple) or isinstance(value, tuple):
            merged = Unknown(reason)
        else:
            merged = merge(merged, value, reason)
    return merged
