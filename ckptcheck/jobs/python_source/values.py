"""The values of a Python script during reading: texts with lines, lists, dicts, objects, and unknown values."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ckptcheck.jobs.budget import CHARACTERS, ITEMS, current_budget

T = TypeVar("T")
MOST_ITEMS = 5000
"""Largest number of items of a list, and of values that `to_plain` follows: a list can double itself repeatedly."""
Value = object
"""A number, True, False or None as Python has them; one of the classes below."""


class Missing:
    """Stands for a missing name, key or result."""


MISSING = Missing()


@dataclass(frozen=True)
class Piece:
    """A part of a text that is written in one line of a script."""

    text: str
    """The characters; "" for an unknown part."""
    line: int
    """The line where it is written, from 1."""
    file: str
    """The script that writes it, as the report names it."""
    reason: str = ""
    """Why the part is unknown, or not certain to be there; "" if it is known."""


@dataclass(frozen=True)
class Text:
    """A text, which can have unknown parts. A pathlib.Path is one too."""

    pieces: tuple[Piece, ...] = ()

    @property
    def known(self) -> str | None:
        """The whole text; None if a part of it is unknown."""
        return None if self.reason else self.shown

    @property
    def shown(self) -> str:
        """The text without its unknown parts."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def reason(self) -> str:
        """Why the text is unknown; "" if it is known."""
        return next((piece.reason for piece in self.pieces if piece.reason), "")

    def replaced(self, text: str) -> Text:
        """Return another text in the place of this one."""
        first = self.pieces[0] if self.pieces else Piece("", 0, "")
        return Text((Piece(text, first.line, first.file),))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.known is not None and self.known == other.known

    def __hash__(self) -> int:
        return hash(self.known)


@dataclass(frozen=True)
class Unknown:
    """A value that is known only when the script runs."""

    reason: str = "it is known only when the script runs"
    """Why, as a part of a sentence."""
    line: int = 0


@dataclass(frozen=True)
class Unset(Unknown):
    """The value of an environment variable that the script asks for without a default: it counts as false."""


@dataclass(frozen=True)
class Reference:
    """Something that the script imports, by its dotted name: ``subprocess.run``."""

    name: str


@dataclass(eq=False)
class Slots:
    """A value that the script can change: its parts by key."""

    slots: dict[Hashable, Value] = field(default_factory=dict)


class Items(Slots):
    """A list, tuple or set: the slot ``items`` has a tuple."""

    @staticmethod
    def of(items: Iterable[Value]) -> Items:
        """Make a list of these items; of a longer one than `MOST_ITEMS`, the first of them."""
        return Items({"items": tuple(items)[:MOST_ITEMS]})

    @property
    def items(self) -> tuple[Value, ...]:
        """The items."""
        items = self.slots["items"]
        assert isinstance(items, tuple)
        return items


class Table(Slots):
    """A dict: key → value. Only texts, numbers and None are keys."""


@dataclass(eq=False)
class Instance(Slots):
    """An object of a class: of the script, or of one that the script imports (`name` is its dotted name then)."""

    name: str = ""
    cls: Class | None = None
    """The class, if it is one of the script."""
    is_parsed: bool = False
    """Whether the command line fills it."""


@dataclass(eq=False)
class Frame(Slots):
    """The names of a module, of the body of a class, or of a call of a function."""

    parent: Frame | None = None
    """The frame for names that this one lacks."""
    file: str = ""
    """The module whose code runs, as the report names it."""
    lines: Sequence[str] = ()
    """The module's lines, in which the places of texts are looked up."""
    returned: list[Value] = field(default_factory=list)
    """The values that the function may return."""
    outer_names: set[str] = field(default_factory=set)
    """The names that ``global`` and ``nonlocal`` declare."""

    def inside(self) -> Frame:
        """Return an empty frame within this one."""
        return Frame(parent=self, file=self.file, lines=self.lines)

    def find(self, name: str) -> Frame | None:
        """Return the frame that has a name; None if no frame has it."""
        frame: Frame | None = self
        while frame is not None and name not in frame.slots:
            frame = frame.parent
        return frame


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Frame
    """The frame in which it is defined."""
    defaults: dict[str, Value]
    """Parameter → its default."""
    owner: Value = MISSING
    """The object of a bound method."""


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the script."""

    name: str
    frame: Frame
    """The definitions of its body: constants and methods."""
    fields: dict[str, Value]
    """Annotated names with their defaults (MISSING: none), those of base classes first."""
    bases: Sequence[Value]

    def _walk(self) -> Iterator[Value]:
        """Yield the class and its bases, each once."""
        waiting: list[Value] = [self]
        seen: set[int] = set()
        while waiting:
            cls = waiting.pop()
            if id(cls) not in seen:
                seen.add(id(cls))
                yield cls
                waiting += reversed(cls.bases) if isinstance(cls, Class) else ()
        current_budget().spend(len(seen) // ITEMS, "a Python script")

    def find_imported_base(self) -> str | None:
        """Return the dotted name of the first base that the script imports; None without one."""
        return next((cls.name for cls in self._walk() if isinstance(cls, Reference)), None)

    def find(self, name: str) -> Value:
        """Return a constant or method of the class or of its bases; MISSING without one."""
        owners = (cls.frame.slots for cls in self._walk() if isinstance(cls, Class))
        return next((slots[name] for slots in owners if name in slots), MISSING)


def weigh(value: Value) -> int:
    """Return the steps that making a value takes, by its parts."""
    if isinstance(value, Text):
        return sum(len(piece.text) + ITEMS for piece in value.pieces) // CHARACTERS
    if isinstance(value, Items):
        return len(value.items) // ITEMS
    return len(value.slots) // ITEMS if isinstance(value, Slots) else 0


def spend_on_each(items: Sequence[T]) -> Sequence[T]:
    """Return the items, and charge the budget for a loop over them: one step for three items."""
    current_budget().spend(len(items) // 3, "a Python script")
    return items


def is_number(value: Value) -> bool:
    """Whether a value is a number, True, False or None."""
    return value is None or isinstance(value, (int, float))


def to_key(value: Value) -> Hashable:
    """Return a value as the key of a dict; MISSING if it is unknown."""
    if isinstance(value, Text):
        return MISSING if value.known is None else value.known
    return value if value is None or isinstance(value, (int, float)) else MISSING


def to_truth(value: Value) -> bool | None:
    """Whether a value counts as true; None if unknown."""
    if isinstance(value, Text):
        return bool(value.shown) or (None if value.reason else False)
    if isinstance(value, Items):
        return bool(value.items)
    if isinstance(value, Table) or is_number(value):
        return bool(value.slots if isinstance(value, Table) else value)
    if isinstance(value, (Function, Class, Instance)):
        return True
    return False if isinstance(value, Unset) else None


def to_items(value: Value) -> Sequence[Value] | None:
    """Return the items of a list, or the keys of a dict; None if they are unknown."""
    if isinstance(value, Items):
        return value.items
    if isinstance(value, Table):
        return [Text((Piece(key, 0, ""),)) if isinstance(key, str) else key for key in value.slots]
    return None


def to_plain(value: Value) -> tuple[object, str]:
    """Return (a value in plain Python: text, number, bool, None, list, dict; why it is unknown, or "")."""
    left = [MOST_ITEMS]
    plain = _to_plain(value, left)
    current_budget().spend((MOST_ITEMS - left[0]) // ITEMS, "a Python script")
    return plain


def _to_plain(value: Value, left: list[int]) -> tuple[object, str]:
    """Return the same as `to_plain`. left: how many values may still be followed."""
    left[0] -= 1
    if left[0] < 0:
        return None, f"it has more than {MOST_ITEMS:,} values"
    if isinstance(value, Text):
        return value.shown, value.reason
    if isinstance(value, Unknown):
        return None, value.reason
    if isinstance(value, Items):
        items = [_to_plain(item, left) for item in value.items if left[0] >= 0]
        return [item for item, _ in items], next((reason for _, reason in items if reason), "")
    if isinstance(value, Table):
        pairs = {str(key): _to_plain(item, left) for key, item in value.slots.items() if left[0] >= 0}
        return {key: item for key, (item, _) in pairs.items()}, next((why for _, why in pairs.values() if why), "")
    if isinstance(value, Reference):
        return value.name, ""
    return (value, "") if is_number(value) else (None, "it is an object of the script")


def from_plain(plain: object, line: int, file: str) -> Value:
    """Return a result of plain Python as a value at a line; MISSING for one of another kind."""
    if isinstance(plain, str):
        return Text((Piece(plain, line, file),))
    if isinstance(plain, (list, tuple)):
        return Items.of(from_plain(item, line, file) for item in plain)
    return plain if is_number(plain) else MISSING
