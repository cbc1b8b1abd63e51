"""Why a tensor differs that is too large to be held: it is looked at in slabs, and a cause is named where all slabs show it.

What moves or changes whole rows (heads, groups, halves, shards of ranks) does the same in every column, so each slab of columns
shows it by itself, and together they are the tensor: nothing is left to believe. What moves columns shows in slabs of rows. A
cause whose words count columns in a slab of columns, or rows in one of rows, is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckptcheck.bridge.area import Area
from ckptcheck.phrase import count, size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.comparison.reading import Files
    from ckptcheck.diagnosis import Sides, Verdict

ROOM = 1 << 25
"""Bytes of a slab, of each tensor that is looked at."""
BLOCK = 1 << 23
"""Bytes that are read at a time, of whole rows."""
SLABS = 64
"""Slabs of a tensor at most: the file is read once for each."""
MOST = 8
"""Tensors of one shape that are looked at, spread over kinds and layers."""
ALL = frozenset(("zero", "nan", "constant", "stale", "layer", "expert", "sign", "byte-order", "round-trip", "scaled"))
"""Causes that are the same in every part of a tensor."""
TAKEN = (
    ALL
    | {"qkv-interleave", "gate-up-swapped", "gate-up-interleaved", "rope-permuted", "rows-shifted", "partial-write"}
    | {"tp-concatenated", "tp-order", "tp-duplicated"},
    frozenset(("tp-order", "tp-duplicated", "partial-write")),
)
"""Causes that a slab of columns can show, and those that only a slab of rows can."""
COUNTED = (("columns ", "elements ", "in one tensor"), ("rows ", "elements ", "in one tensor"))
"""Words of places that are a slab's own and not the tensor's."""

Cut = tuple[int, int, int]
"""Dimension (0: rows, 1: columns), number of the slab, number of slabs."""


def verdicts(shapes: dict[str, Area], sides: Callable[[Cut, Iterable[str] | None], Sides]) -> list[Verdict]:
    """Return verdicts over large tensors. shapes: name → tensor. sides: reads one slab of everything, or of these names only."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, area in shapes.items():
        alike.setdefault(area.shape, []).append(name)
    found: list[Verdict] = []
    for names in alike.values():
        area = shapes[names[0]]
        number = -(-area.nbytes // ROOM)
        named: list[Verdict] = []
        if number <= SLABS and len(area.shape) == 2 and min(area.shape) >= number:
            for axis in (1, 0):
                rest = [name for name in names if all(name not in verdict.tensors for verdict in named)]
                named += _named(rest, axis, number, sides) if rest else []
        found += named
        known = {name for verdict in named for name in verdict.tensors}
        if unknown := tuple(name for name in names if name not in known):
            found.append(_too_large(unknown, area))
    return found


def read(files: Files, area: Area, cut: Cut) -> NDArray[Any]:
    """Read one slab of a tensor, a few rows at a time. Raises Unreadable."""
    import numpy as np

    axis, slab, slabs = cut
    axis = axis if axis == 0 else len(area.shape) - 1
    begin, end = (area.shape[axis] * at // slabs for at in (slab, slab + 1))
    if axis == 0:
        return files.whole(area.cut(0, begin, end))
    found = np.empty((*area.shape[:-1], end - begin), f"<u{area.itemsize}")
    step = max(1, BLOCK * area.shape[0] // max(area.nbytes, 1))
    for first in range(0, area.shape[0], step):
        last = min(first + step, area.shape[0])
        found[first:last] = files.whole(area.cut(0, first, last))[..., begin:end]
    return found


def _named(
    names: list[str], axis: int, slabs: int, sides: Callable[[Cut, Iterable[str] | None], Sides]
) -> list[Verdict]:
    """Name causes by one slab, and keep those that every other slab shows as well."""
    from ckptcheck.diagnosis import diagnose

    def fits(verdict: Verdict) -> bool:
        said = _said(verdict)
        return set(verdict.causes) <= TAKEN[1 - axis] and not any(word in said for word in COUNTED[1 - axis])

    named = [verdict for verdict in diagnose(sides((axis, slabs // 2, slabs), None), names, most=MOST) if fits(verdict)]
    for slab in range(slabs):
        if not named:
            break
        wanted = [name for verdict in named for name in verdict.tensors]
        moved = any({"layer", "expert"} & set(verdict.causes) for verdict in named)
        here = diagnose(sides((axis, slab, slabs), None if moved else wanted), wanted, most=len(wanted))
        shown = {(verdict.causes, _said(verdict), verdict.tensors) for verdict in here}
        named = [verdict for verdict in named if (verdict.causes, _said(verdict), verdict.tensors) in shown]
    return [replace(verdict, evidence=f"{verdict.evidence}, in each of {slabs} slabs") for verdict in named]


def _said(verdict: Verdict) -> str:
    """Return what a verdict says, without the names and numbers of the tensors of which it says it."""
    return verdict.sentence.partition(": ")[2]


def _too_large(names: tuple[str, ...], area: Area) -> Verdict:
    from ckptcheck.diagnosis import Verdict

    text = (
        f"too large ({size(area.nbytes)}) to look for a cause but in slabs, and there is none that all slabs of it show"
    )
    return Verdict(("unknown",), f"{count(len(names), 'tensor')}: the cause is unknown", names, "unknown", text)
