"""Formats numbers, shapes and lists of names for messages."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_lists: ContextVar[dict[str, tuple[str, ...]] | None] = ContextVar("_lists", default=None)
"""Text of each list that `join_truncated` made → all of its names, while somebody remembers them."""


def format_ranges(numbers: Iterable[int], most: int = 12) -> str:
    """Format numbers as sorted ranges, truncated after `most` ranges.

    >>> format_ranges([0, 1, 3, 4, 5, 9])
    '0-1,3-5,9'
    >>> format_ranges(range(0, 100, 2), most=3)
    '0,2,4 and 47 more'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs[:most])
    rest = sum(high - low + 1 for low, high in runs[most:])
    if not rest:
        return text
    return remember_list(
        f"{text} and {rest} more", [str(number) for low, high in runs for number in range(low, high + 1)]
    )


def format_layers(layers: Iterable[int]) -> str:
    """Format layer indices with their noun.

    >>> format_layers([3]), format_layers([0, 1, 2, 3, 7])
    ('layer 3', 'layers 0-3,7')
    """
    numbers = set(layers)
    return f"layer{'' if len(numbers) == 1 else 's'} {format_ranges(numbers)}"


def join_truncated(names: Collection[str], most: int = 3) -> str:
    """Join the first few names and count the rest.

    >>> join_truncated(["a", "b"])
    'a, b'
    >>> join_truncated(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = [name or '""' for name in sorted(names)]
    text = ", ".join(listed[:most])
    if len(listed) > most:
        text = f"{text} and {len(listed) - most} more"
    return remember_list(text, listed)


def remember_list(text: str, names: Sequence[str]) -> str:
    """Return the text that stands for these names in a message; `find_listed` gives them all."""
    if len(names) > 1 and (lists := _lists.get()) is not None:
        lists[text] = tuple(names)
    return text


@contextmanager
def remember_lists() -> Iterator[Mapping[str, tuple[str, ...]]]:
    """Give the lists that `join_truncated` makes while the block runs: a message has the first few names, a program wants all."""
    lists: dict[str, tuple[str, ...]] = {}
    token = _lists.set(lists)
    try:
        yield lists
    finally:
        _lists.reset(token)


def find_listed(message: str, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return all names of the lists in a message, in their order.

    >>> find_listed("lost: a, b and 1 more", {"a, b": ("a", "b"), "a, b and 1 more": ("a", "b", "c")})
    ('a', 'b', 'c')
    """
    found: dict[int, tuple[str, ...]] = {}
    for text in sorted((text for text in lists if text in message), key=len, reverse=True):
        if text in message:
            found[message.index(text)] = lists[text]
            message = message.replace(text, "\0" * len(text))
    return tuple(dict.fromkeys(name for place in sorted(found) for name in found[place]))


def list_unless_single(names: Collection[str]) -> str:
    """List names after a colon; nothing for a single name, which the place of the finding already gives.

    >>> list_unless_single(["a", "b"]), list_unless_single(["a"])
    (': a, b', '')
    """
    return f": {join_truncated(names)}" if len(names) > 1 else ""


def join_words(names: Sequence[str]) -> str:
    """Join names as in a sentence.

    >>> join_words(["a"]), join_words(["a", "b"]), join_words(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun, in the plural where needed.

    >>> count(1, "tensor"), count(2400, "tensor"), count(2, "family", "families")
    ('1 tensor', '2,400 tensors', '2 families')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_bytes(number: int) -> str:
    """Format a number of bytes in decimal units, as disks and the Hub do.

    >>> format_bytes(512), format_bytes(269_060_552), format_bytes(1_029_000_000_000)
    ('512 bytes', '269 MB', '1.03 TB')
    """
    amount = float(number)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if amount < 999.5 or unit == "PB":
            break
        amount /= 1000
    return f"{number} byte{'' if number == 1 else 's'}" if unit == "bytes" else f"{amount:.3g} {unit}"


def format_duration(seconds: float) -> str:
    """Format a duration as a person would say it.

    >>> format_duration(0.4), format_duration(45), format_duration(150), format_duration(9000), format_duration(864000)
    ('1 second', '45 seconds', '3 minutes', '2.5 hours', '10 days')
    """
    if seconds < 100:
        return count(max(math.ceil(seconds), 1), "second")
    if seconds < 6000:
        return count(math.ceil(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours" if seconds < 4 * 86400 else f"{seconds / 86400:,.0f} days"


def format_shape(dimensions: Iterable[int]) -> str:
    """Format a shape.

    >>> format_shape((49152, 576)), format_shape(())
    ('[49152, 576]', '[]')
    """
    return "[" + ", ".join(map(str, dimensions)) + "]"


def natural_sort_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts layer 10 after layer 9.

    >>> sorted(["layers.10.a", "layers.9.b", "head"], key=natural_sort_key)
    ['head', 'layers.9.b', 'layers.10.a']
    """
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))
