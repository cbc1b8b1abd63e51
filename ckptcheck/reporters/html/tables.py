"""Writes each picture as a short table, for readers whose browser runs no scripts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from ckptcheck.linter.pictures import (
    AlikeCells,
    Curves,
    HeatCell,
    HeatMap,
    Histogram,
    NoPicture,
    Picture,
    TextCell,
    TextTable,
)
from ckptcheck.text.formatting import count

Entry = str | float | None
MOST_LINES = 30
"""Rows of a table. The gravest come first, and the page says how many are left out."""


@dataclass(frozen=True)
class PictureTable:
    """The content of a picture, in words and numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    left_out: int = 0
    summary: str = ""
    """How often each state occurs: "268 equal, 4 different"."""


def tabulate(picture: Picture) -> PictureTable | None:
    """Return the table of a picture; None for one that shows nothing of its own."""
    match picture:
        case HeatMap():
            return _tabulate_heat_map(picture)
        case Curves():
            shown = range(min(len(picture.series), MOST_LINES))
            return PictureTable(
                (picture.y_label or "value", "first", "least", "largest", "last", "marked"),
                tuple(_describe_line(picture, number) for number in shown),
                len(picture.series) - len(shown),
            )
        case Histogram():
            edges = picture.edges
            bins = [
                (f"{edges[at]:.4g} to {edges[at + 1]:.4g}", *(series.values[at] for series in picture.series))
                for at in range(len(edges) - 1)
                if any(series.values[at] for series in picture.series)
            ]
            return _cut((picture.x_label or "from, to", *(series.name for series in picture.series)), bins)
        case TextTable():
            return _cut(picture.columns, [tuple(map(_write_cell, row)) for row in picture.rows])
        case NoPicture():
            return None


def _cut(columns: tuple[str, ...], rows: Sequence[tuple[Entry, ...]]) -> PictureTable:
    return PictureTable(columns, tuple(rows[:MOST_LINES]), max(len(rows) - MOST_LINES, 0))


def _name_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in states.items() if state)


def _list_cells(picture: HeatMap) -> Iterator[tuple[tuple[int, int], str, HeatCell, AlikeCells | None]]:
    """Yield place, label and cell, or members that are alike and what they have in common.

    Members replace their cell; other cells have no label.
    """
    for where, cell in sorted(picture.cells.items(), key=itemgetter(0)):
        if isinstance(cell.members, AlikeCells):
            yield where, "", cell.members.cell, cell.members
        elif cell.members:
            for label, member in cell.members.items():
                yield where, label, member, None
        else:
            yield where, "", cell, None


def _tabulate_heat_map(picture: HeatMap) -> PictureTable:
    graves = {state.name: -number for number, state in enumerate(picture.states)} | {"": 1}
    cells = list(_list_cells(picture))
    order = [(graves.get(cell.state, 1), -(cell.value or 0)) for _, _, cell, _ in cells]
    first = [cells[at] for at in heapq.nsmallest(MOST_LINES, range(len(cells)), key=order.__getitem__)]
    columns = (picture.row_label, picture.column_label, picture.value_label or "value", "state", "note")
    rows = (
        (
            picture.rows[row] + (f", {picture.member_label} {label}" if label else ""),
            picture.columns[column],
            cell.value,
            cell.state,
            cell.note or cell.name,
        )
        for (row, column), label, cell, alike in first
        for label, cell in (alike.items() if alike is not None else ((label, cell),))
    )
    shown = tuple(islice(rows, MOST_LINES))
    states: Counter[str] = Counter()
    for *_, cell, alike in cells:
        states[cell.state] += len(alike) if alike is not None else 1
    return PictureTable(columns, shown, states.total() - len(shown), _name_states(states))


def _describe_line(picture: Curves, number: int) -> tuple[Entry, ...]:
    """Return name, first, least, largest and last value of a line with their places, and its marks."""
    line = picture.series[number]
    known = [(value, picture.x[at]) for at, value in enumerate(line.values) if value is not None]
    if not known:
        return (line.name, None, None, None, None, "")
    chosen = (known[0], min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0]), known[-1])
    marks = [f"{mark.text} ({_name_x(picture.x[mark.index])})" for mark in picture.marks if mark.series == line.name]
    if len(marks) > 3:
        marks = [*marks[:3], count(len(marks) - 3, "further mark")]
    label = picture.x_label or "at"
    return (line.name, *(f"{value:.4g} ({label} {_name_x(x)})" for value, x in chosen), "; ".join(marks))


def _name_x(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:g}"


def _write_cell(cell: TextCell) -> str:
    return " · ".join(filter(None, (cell.state, cell.text, cell.note)))
