"""Places tensors on a grid of modules × layers, for pictures: experts of a layer share one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckptcheck.checkpoint.layout import INDEX, Block, Layout, Pick, parse_layout, pick_places
from ckptcheck.linter.evidence import remembered

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

OUTSIDE = "–"
"""The column of tensors that belong to no layer."""
MOST_ROWS, MOST_COLUMNS = 400, 1000
"""A hostile file can name anything. No model has more modules or layers, and no reader could make out a larger picture."""


class GridPlace(NamedTuple):
    """What stands at a place: a tensor, or the tensors of experts whose names differ in the number of the expert."""

    row: int
    column: int
    names: Sequence[str]
    members: dict[str, None]
    """The experts, in the order of the names; {} for a tensor that shares its place with no other."""
    around: tuple[str, str]
    """What the names have before and behind the number of the expert."""


@dataclass(frozen=True)
class LayerGrid:
    """Modules × layers, and the place of each tensor."""

    rows: tuple[str, ...]
    """Names of modules within a layer, in the order of the tensors; `*` stands for the number of an expert."""
    columns: tuple[str, ...]
    """One column for tensors outside the layers, then the numbers of the layers, ascending."""
    places: tuple[GridPlace, ...]
    """In the order of the tensors. A place occurs again where other tensors stand between its experts."""
    left_out: int = 0
    """Number of tensors without a place, because there are too many rows or columns."""


@remembered
def place_tensors(ckpt: Checkpoint) -> LayerGrid:
    """Place every tensor of a checkpoint."""
    return build_layer_grid(ckpt.tensors, ckpt.layout)


def build_layer_grid(names: Iterable[str], layout: Layout | None = None) -> LayerGrid:
    """Place every name; a second stack of layers, such as an image encoder, gets rows of its own.

    layout: that of these names in this order, if it is known already.

    >>> grid = build_layer_grid(["embed.weight", "h.0.up.weight", "h.1.up.weight", "h.1.experts.3.up.weight"])
    >>> grid.rows, grid.columns, grid.places[-1][:4]
    (('embed', 'up', 'experts.*.up'), ('–', '0', '1'), (2, 2, ('h.1.experts.3.up.weight',), {'3': None}))
    """
    names = tuple(names)
    layout = layout or parse_layout(names)
    stacks = {prefix: stack for prefix, stack in layout.stacks.items() if len(stack.layers) > 1}
    numbers = sorted({number for stack in stacks.values() for number in stack.layers})[:MOST_COLUMNS]
    is_outside = bool(layout.outside) or len(stacks) < len(layout.stacks)
    columns = {text: at for at, text in enumerate([*([OUTSIDE] if is_outside else []), *map(str, numbers)])}
    rows: dict[str, int] = {}
    places: list[GridPlace] = []
    kinds_of_block: dict[int, list[_Kind]] = {}
    end = 0

    def place_outside(names: Sequence[str]) -> None:
        found = [(_find_row(rows, name), name) for name in names]
        places.extend(GridPlace(row, columns[OUTSIDE], (name,), {}, ("", "")) for row, name in found if row is not None)

    for at, template, block in layout.runs:
        place_outside(names[end:at])
        end = at + len(block.endings)
        run, prefix = names[at:end], template[: -len(".{}.")]
        if prefix not in stacks:
            place_outside(run)
            continue
        start = run[0][: len(run[0]) - len(block.endings[0])]
        if (column := columns.get(start[len(template) - len("{}.") : -1])) is None:
            continue
        if (kinds := kinds_of_block.get(id(block))) is None:
            kinds = kinds_of_block[id(block)] = _split_block(block)
        for kind in kinds:
            text = kind.text if len(stacks) == 1 else f"{prefix}: {kind.text}"
            if (row := _find_row(rows, text)) is not None:
                places.append(GridPlace(row, column, kind.pick(run), kind.members, (start + kind.begin, kind.ending)))
    place_outside(names[end:])
    number = sum(len(place.names) for place in places)
    return LayerGrid(tuple(rows), tuple(columns), tuple(places), len(names) - number)


def _find_row(rows: dict[str, int], text: str) -> int | None:
    """Return the row of a module, a new one for a new module; None where there are too many."""
    label = text.removesuffix(".weight") or text
    return rows.setdefault(label, len(rows)) if label in rows or len(rows) < MOST_ROWS else None


class _Kind(NamedTuple):
    """The tensors of a layer that share a place."""

    text: str
    begin: str
    ending: str
    members: dict[str, None]
    pick: Pick[str]
    """Takes them from the names of the layer."""


def _split_block(block: Block) -> list[_Kind]:
    """Return the kinds of a layer's tensors: those whose names differ in their first number are one kind."""
    kinds: dict[tuple[str, ...], tuple[dict[str, None], list[int]]] = {}
    for place, name in enumerate(block.endings):
        begin, *numbered = INDEX.split(name, 1)
        members, places = kinds.setdefault((begin, *numbered[1:]), ({}, []))
        members |= dict.fromkeys(numbered[:1])
        places.append(place)
    return [
        _Kind("*".join(parts), parts[0], parts[-1] if members else "", members, pick_places(places))
        for parts, (members, places) in kinds.items()
    ]
