"""Which tensors of two checkpoints belong together. Every tensor of both sides ends up in exactly one account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area, LayoutError
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.hf_names import renamed
from ckptcheck.bridge.table import Entry, Table, original, parts
from ckptcheck.comparison.side import Side

if TYPE_CHECKING:
    from ckptcheck.comparison.packed import Packed

OUTPUT, EMBEDDING = "output_layer.weight", "embedding.word_embeddings.weight"
"""Megatron's own names of head and embedding, where no table of a family says Hugging Face's."""


@dataclass(frozen=True)
class Pair:
    """Two tensors, or parts of tensors, that should be equal. name: the plain one; names: as each side stores it."""

    name: str
    names: tuple[str, str]
    first: Area | Packed
    second: Area | Packed

    @property
    def fits(self) -> bool:
        """Whether the shapes are equal, as far as they are known."""
        unknown = any(not isinstance(side, Area) and side.unknown for side in (self.first, self.second))
        return unknown or self.first.shape == self.second.shape


@dataclass
class Accounts:
    """pairs: what is compared. aliased: name → the other side's tensor of which it is a copy (its pair is in `pairs`).

    missing, extra: plain name → name as stored, on one side only. heads: of those, what a critic has or lacks by design.
    shapes: pairs of unequal shape. unfit: (side, name) → why the layout does not fit it. padding: plain name → rows of padding.
    bridged: how many pairs a table or a rename brought together.
    """

    pairs: list[Pair] = field(default_factory=list)
    aliased: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    shapes: list[Pair] = field(default_factory=list)
    unfit: dict[tuple[int, str], str] = field(default_factory=dict)
    padding: dict[str, int] = field(default_factory=dict)
    bridged: int = 0


Plain = dict[str, "tuple[str, Area | Packed]"]
"""Plain name → the stored name and what it is."""


def match(first: Side, second: Side, table: Table | None, *, critic: bool = False) -> Accounts:
    """Bring the tensors of two sides together: by name, and where that does not do by a family's table."""
    found = Accounts()
    direct = _direct(first, second)
    found.pairs += (Pair(name, (name, name), first.stored[name], second.stored[name]) for name in direct)
    geometry = first.geometry if first.geometry.heads else second.geometry
    ours, theirs = (_plain(side, number, direct, table, geometry, found) for number, side in enumerate((first, second)))
    if critic:
        for side, plain in ((first, ours), (second, theirs)):
            _heads_in_output(side, plain)
    for name in [name for name in ours if name in theirs]:
        _add(found, first, second, name, ours.pop(name), theirs.pop(name))
    paired = {name: pair for pair in found.pairs for name in (pair.name, renamed(pair.name))}
    for one_side, other_side, rest, swapped in ((first, second, ours, False), (second, first, theirs, True)):
        _aliases(found, paired, one_side, other_side, rest, swapped, table)
    if critic:
        lm_heads = (first.head, second.head, OUTPUT)
        found.heads = {
            name: stored
            for rest in (ours, theirs)
            for name, (stored, _) in rest.items()
            if name in lm_heads or is_score(name)
        }
    found.missing = {name: stored for name, (stored, _) in ours.items() if name not in found.heads}
    found.extra = {name: stored for name, (stored, _) in theirs.items() if name not in found.heads}
    return found


def is_score(name: str) -> bool:
    """Whether a plain name belongs to a value, reward or classification head."""
    return name.rpartition(".")[0].rpartition(".")[2] in ("score", "classifier", "qa_outputs")


def is_score_in_output(side: Side, name: str, area: Area) -> bool:
    """Whether it is a value head in the place of Megatron's output layer, where verl's critics have theirs (LinearForLastLayer)."""
    return side.is_megatron and name == OUTPUT and len(area.shape) == 2 and area.shape[0] == 1


def _heads_in_output(side: Side, plain: Plain) -> None:
    """Call a value head in the place of the output layer what other critics call theirs."""
    for name, (stored, _) in list(plain.items()):
        if stored == OUTPUT and is_score_in_output(side, stored, side.stored[stored]):
            plain.setdefault("score.weight", plain.pop(name))


def _direct(first: Side, second: Side) -> set[str]:
    """Return the names that need no bridge: stored on both sides alike, and quantized alike where they are."""
    if first.is_megatron != second.is_megatron:
        return set()
    return {
        name
        for name, area in first.stored.items()
        if (other := second.stored.get(name)) is not None
        and other.shape == area.shape
        and (name in first.consumed) == (name in second.consumed)
        and (name not in first.consumed or area.dtype == other.dtype)
    }


def _plain(
    side: Side, number: int, direct: set[str], table: Table | None, geometry: Geometry, found: Accounts
) -> Plain:
    """Return the rest of a side's tensors under their plain names."""
    entries: Mapping[str, Entry] = {}
    if table is not None:
        entries = table.megatron if side.is_megatron else table.variants
    plain: Plain = {}
    for name, area in side.stored.items():
        if name in direct or name in side.consumed:
            continue
        try:
            cut = parts(entries, name, area, geometry)
        except LayoutError as error:
            found.unfit[number, name] = str(error)
            continue
        for part, what in (cut or {renamed(name): area}).items():
            if part in plain:
                found.unfit[number, name] = f"it and {plain[part][0]} are both {part}"
            else:
                plain[part] = (name, what)
    for name, packed in side.packed.items():
        if all(stored in direct for stored in packed.names):
            continue
        try:
            experts = packed.cut(partial(parts, entries, name, geometry=geometry))
        except LayoutError as error:
            found.unfit[number, packed.names[0]] = str(error)
            continue
        plain |= {part: (packed.names[0], what) for part, what in (experts or {renamed(name): packed}).items()}
    return plain


def _add(
    found: Accounts,
    first: Side,
    second: Side,
    name: str,
    ours: tuple[str, Area | Packed],
    theirs: tuple[str, Area | Packed],
) -> None:
    """Pair two tensors; rows that pad Megatron's vocabulary are left out, other differences of shape are written down."""
    areas = [ours[1], theirs[1]]
    for at, (side, other) in enumerate(((first, second), (second, first))):
        mine, its = areas[at], areas[1 - at]
        if (
            side.is_megatron
            and not other.is_megatron
            and name in (other.embedding, other.head)
            and isinstance(mine, Area)
        ):
            surplus = mine.shape[0] - its.shape[0] if mine.shape and its.shape else 0
            if surplus > 0 and mine.shape[1:] == its.shape[1:]:
                areas[at] = mine.cut(0, 0, its.shape[0])
                found.padding[name] = surplus
    pair = Pair(name, (ours[0], theirs[0]), *areas)
    (found.pairs if pair.fits else found.shapes).append(pair)
    found.bridged += pair.fits


def _aliases(
    found: Accounts,
    paired: Mapping[str, Pair],
    side: Side,
    other: Side,
    rest: Plain,
    swapped: bool,
    table: Table | None,
) -> None:
    """Pair what only one side stores with the tensor of which it is a copy on the other: a tied head, a copy for a draft layer."""
    copies = table.copies if table is not None else {}
    for name in list(rest):
        goal = original(copies, name)
        if (name == side.head or goal == side.head) and goal not in paired and other.tied:
            goal = other.embedding
        if goal is None or goal not in paired:
            continue
        stored, area = rest[name]
        pair = paired[goal]
        its = pair.first if swapped else pair.second
        its_name = pair.names[0] if swapped else pair.names[1]
        if isinstance(area, Area) and isinstance(its, Area) and area.shape != its.shape and side.is_megatron:
            found.padding[name] = area.shape[0] - its.shape[0]
            area = area.cut(0, 0, min(its.shape[0], area.shape[0]))
        ends = ((its_name, its), (stored, area)) if swapped else ((stored, area), (its_name, its))
        alias = Pair(name, (ends[0][0], ends[1][0]), ends[0][1], ends[1][1])
        (found.pairs if alias.fits else found.shapes).append(alias)
        found.aliased[name] = its_name
        del rest[name]
