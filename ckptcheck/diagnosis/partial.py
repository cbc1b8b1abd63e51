"""Written in part: some rows, columns or a run of elements hold something else, and the rest is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptcheck.diagnosis.contents import instead
from ckptcheck.diagnosis.difference import Difference, parts
from ckptcheck.diagnosis.verdict import Cause

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit


def partly(unit: Unit, where: Difference) -> Cause | None:
    """Name the part and what it holds: zeros, NaN, one number, or the previous version. Otherwise it is unknown."""
    if where.number < 2:
        return _one_bit(unit, where)
    previous = unit.source("previous", unit.key.place.layer, unit.key.number)
    for part in parts(unit, where):
        found = part.of(unit.actual)
        if found.size < 2:
            continue
        what = instead(unit.dtype, part.of(unit.expected), found)
        if what is not None:
            return Cause("partial-write", f"{part.words} are {what[1]}, the rest is right", group=what[0])
        if previous is not None and np.array_equal(part.of(previous), found):
            text = f"{part.words} still hold the previous version, the rest is new"
            return Cause("partial-write", text, group="previous")
    return None


def _one_bit(unit: Unit, where: Difference) -> Cause | None:
    row, column = divmod(where.first, unit.actual.shape[1])
    flipped = int(unit.expected[row, column] ^ unit.actual[row, column])
    if flipped.bit_count() != 1:
        return None
    place = f"[{row}]" if unit.flat else f"[{row}, {column}]"
    return Cause("bit-flip", f"one bit differs: bit {flipped.bit_length() - 1} of element {place}", group="one")
