"""The values of a Python script during reading: texts with lines, lists, dicts, objects, and unknown values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ckptcheck.jobs.budget import CHARACTERS, ITEMS, current_budget

T = TypeVar("T")
MOST_ITEMS = 5000
"""Largest number of items of a list, and of values that `to_plain` follows: a list can double itself repeatedly."""
UNDER_CONDITION = "set under a condition"
Value = object
"""A number, True, False or None as Python has them; a `Text`, `Items`, `Table`, `Instance` or `Reference`; or an `Unknown`."""


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
    """A text, which can have unknown parts."""

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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.known is not None and self.known == other.known

    def __hash__(self) -> int:
        return hash(self.known)


@dataclass(frozen=True)
class Unknown:
    """A value that is known only when the script runs."""

    reason: str
    """Why, as a part of a sentence."""
    line: int = 0


@dataclass(frozen=True)
class Unset(Unknown):
    """The value of an environment variable that the script asks for without a default: it counts as false."""


@dataclass(eq=False)
class Slots:
    """A value that the script can change: its parts by key."""

    slots: dict[Hashable, Value] = field(default_factory=dict)


class Items(Slots):
    """A list, tuple or set: the slot ``items`` has a tuple."""

    @staticmethod
    def of(items: Sequence[Value]) -> Items:
        """Make a list of these items; of a longer one than `MOST_ITEMS`, the first of them."""
        return Items({"items": tuple(items[:MOST_ITEMS])})

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
    is_parsed: bool = False
    """Whether the command line fills it."""


@dataclass(frozen=True)
class Reference:
    """Something that the script imports, by its dotted name: ``subprocess.run``."""

    name: str


MOST_DIFFERENT = 300
"""Most pieces in which two branches may differ: a value that every branch writes anew would double with each of them."""


def weigh(value: Value) -> int:
    """Return the steps that making a value takes, by its parts."""
    if isinstance(value, Text):
        return sum(len(piece.text) + ITEMS for piece in value.pieces) // CHARACTERS
    if isinstance(value, Items):
        return len(value.items) // ITEMS
    return len(value.slots) // ITEMS if isinstance(value, Slots) else 0


def unknown_if(value: Value, reason: str) -> Value:
    """Return a value that only an undecided branch sets: still visible, but unknown for this reason."""
    if isinstance(value, Text):
        return Text(tuple(replace(piece, reason=piece.reason or reason) for piece in value.pieces))
    if isinstance(value, Items):
        return Items.of([item if isinstance(item, Slots) else unknown_if(item, reason) for item in value.items])
    if isinstance(value, (Slots, Reference)) or callable(value):
        return value
    return value if isinstance(value, Unknown) else Unknown(reason)


def merge(one: Value, other: Value, reason: str) -> Value:
    """Return the common part of two branches of a condition: a text or list keeps its equal beginning as known."""
    if one is other or (type(one) is type(other) and not isinstance(one, (Slots, Unknown)) and one == other):
        return one
    if isinstance(one, Text) and isinstance(other, Text):
        same, rests = _split_common(one.pieces, other.pieces)
        if len(rests) > MOST_DIFFERENT:
            return Unknown(reason)
        return Text((*same, *(replace(piece, reason=piece.reason or reason) for piece in rests)))
    if isinstance(one, Items) and isinstance(other, Items):
        return Items.of(merge_items(one.items, other.items, reason))
    return Unknown(reason)


def merge_items(one: tuple[Value, ...], other: tuple[Value, ...], reason: str) -> tuple[Value, ...]:
    """Return the common beginning of two lists, and the rest of both with the reason."""
    same, rests = _split_common(one, other)
    if len(rests) > MOST_DIFFERENT:
        return (*same, Unknown(reason))
    return (*same, *(unknown_if(item, reason) for item in rests))


def _split_common(one: tuple[T, ...], other: tuple[T, ...]) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return (the common beginning of two tuples, what follows in the one and then in the other)."""
    current_budget().spend((len(one) + len(other)) // ITEMS, "a Python script")
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length], (*one[length:], *other[length:])


def to_plain(value: Value) -> tuple[object, str]:
    """Return (a value in plain Python: text, number, bool, None, list, dict; why it is unknown, or "")."""
    left = [MOST_ITEMS]
    plain = _to_plain(value, left)
    current_budget().spend((MOST_ITEMS - left[0]) // ITEMS, "a Python script")
    return plain


def spend_on_each(items: Sequence[T]) -> Sequence[T]:
    """Return the items, and charge the budget for a loop over them: one step for three items."""
    current_budget().spend(len(items) // 3, "a Python script")
    return items


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
    if value is None or isinstance(value, (bool, int, float)):
        return value, ""
    return None, "it is an object of the script"


def iter_texts(value: Value) -> Iterator[Text]:
    """Yield the texts in a value: the text itself, or those of a list."""
    if isinstance(value, Text):
        yield value
    elif isinstance(value, Items):
        for item in value.items:
            yield from iter_texts(item) if isinstance(item, Text) else ()
