"""Turns numbers and lists into the words of a message."""

from collections.abc import Collection, Iterable, Sequence


def ranges(numbers: Iterable[int], most: int = 12) -> str:
    """Write sorted numbers compactly, the tail cut after `most` runs.

    >>> ranges([0, 1, 3, 4, 5, 9])
    '0-1,3-5,9'
    >>> ranges(range(0, 100, 2), most=3)
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
    return f"{text} and {rest} more" if rest else text


def few(names: Collection[str], most: int = 3) -> str:
    """Name the first few, count the rest.

    >>> few(["a", "b"])
    'a, b'
    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = [name or '""' for name in sorted(names)]
    text = ", ".join(listed[:most])
    return f"{text} and {len(listed) - most} more" if len(listed) > most else text


def listed(names: Sequence[str]) -> str:
    """List names as a sentence does.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Count a noun.

    >>> count(1, "tensor"), count(2400, "tensor"), count(2, "family", "families")
    ('1 tensor', '2,400 tensors', '2 families')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(number: int) -> str:
    """Write bytes in decimal units, as disks and the Hub do.

    >>> size(512), size(269_060_552), size(1_029_000_000_000)
    ('512 bytes', '269 MB', '1.03 TB')
    """
    amount = float(number)
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if amount < 999.5 or unit == "PB":
            break
        amount /= 1000
    return f"{number} byte{'' if number == 1 else 's'}" if unit == "bytes" else f"{amount:.3g} {unit}"


def shape(dimensions: Iterable[int]) -> str:
    """Write a shape.

    >>> shape((49152, 576)), shape(())
    ('[49152, 576]', '[]')
    """
    return "[" + ", ".join(map(str, dimensions)) + "]"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts layer 10 after layer 9.

    >>> sorted(["layers.10.a", "layers.9.b", "head"], key=natural)
    ['head', 'layers.9.b', 'layers.10.a']
    """
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))
