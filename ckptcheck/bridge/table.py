"""What a family's table says: stored name → layout and the names of the parts in the plain Hugging Face form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcheck.bridge.area import Area
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.layouts import Cut, whole

NUMBER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,5})(?=\.)")
"""A layer's or an expert's number within a name."""


@dataclass(frozen=True)
class Entry:
    """targets: names of the parts; {0} stands for the first number in the stored name, {1} for the second.

    stacked: the first dimension counts experts, and stands for a further number.
    """

    targets: tuple[str, ...]
    cut: Cut = whole
    stacked: bool = False


def to(*targets: str, cut: Cut = whole, stacked: bool = False) -> Entry:
    """Write an entry of a table."""
    return Entry(targets, cut, stacked)


@dataclass(frozen=True)
class Table:
    """One family.

    megatron: names in Megatron's normal form (see `megatron_names`), numbers written {}. variants: further forms in which
    Hugging Face checkpoints of the family are stored. copies: name → the name of which it is a copy, where it is stored twice.
    """

    megatron: Mapping[str, Entry] = field(repr=False)
    variants: Mapping[str, Entry] = field(default_factory=dict, repr=False)
    copies: Mapping[str, str] = field(default_factory=dict, repr=False)


def parts(entries: Mapping[str, Entry], name: str, area: Area, geometry: Geometry) -> dict[str, Area] | None:
    """Return plain name → part of a stored tensor, None where the table does not know the name.

    Raises LayoutError where the tensor is not what the layout says.
    """
    entry = entries.get(NUMBER.sub("{}", name))
    if entry is None:
        return None
    numbers = NUMBER.findall(name)
    found = {}
    for number, part in enumerate(area.unstacked()) if entry.stacked else [(-1, area)]:
        own = [*numbers, str(number)] if entry.stacked else numbers
        for target, cut in zip(entry.targets, entry.cut(part, geometry), strict=True):
            found[target.format(*own)] = cut
    return found


def original(copies: Mapping[str, str], name: str) -> str | None:
    """Return the name of which a tensor is a copy by the table, None where it is none."""
    target = copies.get(NUMBER.sub("{}", name))
    return target.format(*NUMBER.findall(name)) if target is not None else None
