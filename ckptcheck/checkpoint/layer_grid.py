"""Places tensors on a grid of modules × layers, for pictures: experts of a layer share one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.linter.evidence import remembered

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

OUTSIDE = "–"
"""The column of tensors that belong to no layer."""
MOST_ROWS, MOST_COLUMNS = 400, 1000
"""A hostile file can name anything. No model has more modules or layers, and no reader could make out a larger picture."""


class GridPlace(NamedTuple):
    """Where a tensor stands."""

    row: int
    column: int
    member: str = ""
    """The expert; "" for a tensor that shares its place with no other."""


@dataclass(frozen=True)
class LayerGrid:
    """Modules × layers, and the place of each tensor."""

    rows: tuple[str, ...]
    """Names of modules within a layer, in the order of the tensors; `*` stands for the number of an expert."""
    columns: tuple[str, ...]
    """One column for tensors outside the layers, then the numbers of the layers, ascending."""
    places: dict[str, GridPlace]
    left_out: int = 0
    """Number of tensors without a place, because there are too many rows or columns."""


@remembered
def place_tensors(ckpt: Checkpoint) -> LayerGrid:
    """Place every tensor of a checkpoint."""
    return build_layer_grid(ckpt.tensors)


def build_layer_grid(names: Iterable[str]) -> LayerGrid:
    """Place every name; a second stack of layers, such as an image encoder, gets rows of its own.

    >>> grid = build_layer_grid(["embed.weight", "h.0.up.weight", "h.1.up.weight", "h.1.experts.3.up.weight"])
    >>> grid.rows, grid.columns, grid.places["h.1.experts.3.up.weight"]
    (('embed', 'up', 'experts.*.up'), ('–', '0', '1'), GridPlace(row=2, column=2, member='3'))
    """
    split: dict[str, tuple[str, str, str, str]] = {}
    layers: dict[str, set[int]] = {}
    # The names of an expert follow each other, and differ only at the end: the part before it is split once.
    shared, known = "\0", ("", "", "", "")
    for name in names:
        if name.startswith(shared):
            prefix, layer, begin, member = known
            split[name] = (prefix, layer, begin + name[len(shared) :], member)
            continue
        parts = INDEX.split(name, 2)
        if len(parts) == 1:
            split[name] = ("", "", name, "")
            continue
        prefix, layer = parts[0][:-1], parts[1]
        layers.setdefault(prefix, set()).add(int(layer))
        if len(parts) == 3:
            split[name] = (prefix, layer, parts[2][1:], "")
            continue
        rest = f"{parts[2]}*{parts[4]}"[1:]
        split[name] = (prefix, layer, rest, parts[3])
        width = len(name) - len(parts[4]) + 1
        shared, known = name[:width], (prefix, layer, f"{parts[2]}*."[1:], parts[3])
    stacks = {prefix for prefix, numbers in layers.items() if len(numbers) > 1}
    numbers = sorted({number for prefix in stacks for number in layers[prefix]})[:MOST_COLUMNS]
    is_outside = any(prefix not in stacks for prefix, _, _, _ in split.values())
    columns = {text: at for at, text in enumerate([*([OUTSIDE] if is_outside else []), *map(str, numbers)])}
    rows: dict[str, int] = {}
    places: dict[str, GridPlace] = {}
    for name, (prefix, layer, rest, member) in split.items():
        is_inside = prefix in stacks
        text = (rest if len(stacks) == 1 else f"{prefix}: {rest}") if is_inside else name
        column = columns.get(layer if is_inside else OUTSIDE)
        label = text.removesuffix(".weight") or text
        if column is None or (label not in rows and len(rows) >= MOST_ROWS):
            continue
        row = rows.setdefault(label, len(rows))
        places[name] = GridPlace(row, column, member if is_inside else "")
    return LayerGrid(tuple(rows), tuple(columns), places, len(split) - len(places))
