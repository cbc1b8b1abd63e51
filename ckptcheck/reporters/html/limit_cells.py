"""Leaves out the heat maps for which a page has no room: a few bytes of a saved report ask for millions of absent cells."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.linter.pictures import HeatMap, NoPicture, Picture
from ckptcheck.linter.stored_pictures import MOST_CELLS


def limit_cells(reports: Sequence[Sequence[Picture]]) -> list[tuple[Picture, ...]]:
    """Return the pictures of some reports with the heat maps that have at most MOST_CELLS cells together, the first ones first."""
    room = MOST_CELLS

    def limit(picture: Picture) -> Picture:
        nonlocal room
        if not isinstance(picture, HeatMap):
            return picture
        cells = len(picture.rows) * len(picture.columns)
        if cells > room:
            return NoPicture(picture.title, f"it has {cells:,} cells, and the page has room for {room:,} more")
        room -= cells
        return picture

    return [tuple(map(limit, pictures)) for pictures in reports]
