"""Draws a heat map of modules × layers. Experts, ranks and servers share a cell, which a click opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat

import msgspec

from ckptcheck.checkpoint.layer_grid import GridPlace, LayerGrid, build_layer_grid
from ckptcheck.linter.pictures import AlikeCells, HeatCell, HeatMap, Scale, State
from ckptcheck.text.formatting import count


def draw_layer_map(
    title: str,
    caption: str,
    cells: Mapping[str, HeatCell | Mapping[str, HeatCell]],
    states: tuple[State, ...],
    *,
    value_label: str = "",
    member_label: str = "expert",
    grid: LayerGrid | None = None,
    fill: Callable[[GridPlace], HeatCell] | None = None,
    scale: Scale = "log",
) -> HeatMap | None:
    """Return the heat map; None for no cells.

    Args:
        title: of the picture.
        caption: of the picture; the function appends the number of tensors without a place.
        cells: tensor → its cell; or label → cell, if several share its place (ranks, servers). A cell without a name gets that
            of its tensor: experts that have the same such cell cost next to nothing.
        states: the possible states of cells.
        value_label: the name of the cells' values.
        member_label: the name of the things that share a place.
        grid: the places of these tensors, if they are known already; it may have others too.
        fill: returns the cell of the tensors of a place that `cells` lacks; without it they are not drawn.
        scale: the colour scale of the values.

    """
    grid = grid or build_layer_grid(cells)
    if not grid.places or not (cells or fill):
        return None
    drawn: dict[tuple[int, int], HeatCell] = {}
    members: dict[tuple[int, int], dict[str, HeatCell]] = {}
    alike: dict[tuple[int, int], AlikeCells] = {}
    for place in grid.places:
        where = place.row, place.column
        of_place = [*map(cells.get, place.names, repeat(fill(place) if fill is not None else None))]
        first = of_place[0]
        if where in alike:
            members[where] = dict(alike.pop(where))
        elif (
            place.members
            and where not in members
            and isinstance(first, HeatCell)
            and not first.name
            and of_place.count(first) == len(of_place)
        ):
            alike[where] = AlikeCells(place.members, first, *place.around)
            continue
        for name, expert, given in zip(place.names, place.members or ("",), of_place, strict=True):
            for label, cell in ({"": given} if isinstance(given, HeatCell) else given or {}).items():
                cell = cell if cell.name else msgspec.structs.replace(cell, name=name)
                member = f"{expert}, {member_label} {label}" if expert and label else expert or label
                if member:
                    members.setdefault(where, {})[member] = cell
                else:
                    drawn[where] = cell
    drawn |= {where: HeatCell(members=inner) for where, inner in (alike | members).items()}
    if grid.left_out:
        caption += f" {count(grid.left_out, 'tensor')} of other layers and modules are not drawn."
    return HeatMap(
        title,
        caption,
        grid.rows,
        grid.columns,
        drawn,
        states,
        value_label=value_label,
        scale=scale,
        member_label=member_label,
    )
