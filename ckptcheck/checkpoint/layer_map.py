"""Draws a heat map of modules × layers. Experts, ranks and servers share a cell, which a click opens."""

from __future__ import annotations

from collections.abc import Mapping

from ckptcheck.checkpoint.layer_grid import LayerGrid, build_layer_grid
from ckptcheck.linter.pictures import HeatCell, HeatMap, Scale, State
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
    scale: Scale = "log",
) -> HeatMap | None:
    """Return the heat map; None for no cells.

    Args:
        title: of the picture.
        caption: of the picture; the function appends the number of tensors without a place.
        cells: tensor → its cell; or label → cell, if several share its place (ranks, servers).
        states: the possible states of cells.
        value_label: the name of the cells' values.
        member_label: the name of the things that share a place.
        grid: the places of these tensors, if they are known already; it may have others too.
        scale: the colour scale of the values.

    """
    grid = grid or build_layer_grid(cells)
    if not grid.places or not cells:
        return None
    drawn: dict[tuple[int, int], HeatCell] = {}
    members: dict[tuple[int, int], dict[str, HeatCell]] = {}
    for name, place in grid.places.items():
        if (given := cells.get(name)) is None:
            continue
        for label, cell in ({"": given} if isinstance(given, HeatCell) else given).items():
            member = f"{place.member}, {member_label} {label}" if place.member and label else place.member or label
            if member:
                members.setdefault((place.row, place.column), {})[member] = cell
            else:
                drawn[place.row, place.column] = cell
    drawn |= {where: HeatCell(members=inner) for where, inner in members.items()}
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
