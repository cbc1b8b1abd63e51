"""Writes the names of many tensors briefly: layers and experts as ranges."""

from __future__ import annotations

from collections.abc import Iterable

from ckptcheck.compare.bridge.family_table import NAME_NUMBER
from ckptcheck.text.formatting import format_ranges, remember_list

MAX_GROUPS = 3
"""Groups of names that a message shows; it counts the rest."""


def name_template(name: str) -> tuple[str, ...]:
    """Return the text between the numbers of a name. It is equal for all layers and experts."""
    return tuple(NAME_NUMBER.split(name)[::2])


def group_names(names: Iterable[str], most: int = MAX_GROUPS) -> str:
    """Write names that differ only in a number as one. Names the first groups and counts the rest.

    >>> group_names([f"model.layers.{n}.mlp.up_proj.weight" for n in range(4)] + ["model.norm.weight"])
    'model.layers.{0-3}.mlp.up_proj.weight, model.norm.weight'
    """
    groups: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    names = list(names)
    for name in names:
        groups.setdefault(name_template(name), []).append(tuple(map(int, NAME_NUMBER.findall(name))))
    texts = [_format_group(rest, numbers) or '""' for rest, numbers in list(groups.items())[:most]]
    remaining = sum(len(numbers) for numbers in list(groups.values())[most:])
    return remember_list(", ".join(texts) + (f" and {remaining:,} more" if remaining else ""), names)


def _format_group(rest: tuple[str, ...], numbers: list[tuple[int, ...]]) -> str:
    text = rest[0]
    for position, following in enumerate(rest[1:]):
        values = {number[position] for number in numbers}
        text += (str(next(iter(values))) if len(values) == 1 else "{" + format_ranges(values, 4) + "}") + following
    return text
