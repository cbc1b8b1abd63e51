"""Turns pictures into the small JSON that the scripts of the page draw."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import isfinite
from typing import Any

from ckptcheck.linter.pictures import (
    AlikeCells,
    Curves,
    HeatCell,
    HeatMap,
    Histogram,
    NoPicture,
    Picture,
    Series,
    State,
    TextTable,
)
from ckptcheck.reporters.printable import printable

DIGITS = 4
"""Significant digits of a number in a picture."""
ABSENT, STATELESS, FIRST_STATE = " ", "-", ord("a")
"""How a cell's state is written: no cell, a cell without a state, the letter of the first state."""
NUMBER = re.compile(r"(?:^|(?<=\.))(0|[1-9][0-9]{0,5})(?=\.|$)")
"""A number between dots in canonical form, as `checkpoint.layout.INDEX`."""
Code = list[int]
"""The number of a template, and the numbers that stand in it."""


class NameTable:
    """The templates of all names on a page."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._codes: dict[str, Code] = {}

    def encode(self, name: str) -> Code:
        """Return the template and the numbers of a name, whose control characters become visible.

        >>> table = NameTable()
        >>> table.encode("layers.3.experts.17.up"), table.encode("layers.4.experts.0.up"), table.to_json()
        ([0, 3, 17], [0, 4, 0], [['layers.', '.experts.', '.up']])
        """
        code = self._codes.get(name)  # several pictures show the same tensors
        if code is None:
            parts = NUMBER.split(printable(name))
            template = tuple(parts[::2])
            code = [self._numbers.setdefault(template, len(self._numbers)), *map(int, parts[1::2])]
            self._codes[name] = code
        return code

    def find_template(
        self, listed: Sequence[str], numbers: Sequence[int | None], outer: Sequence[int | None]
    ) -> int | None:
        """Return the template of names that differ in one number; None where they do not, or have others.

        It encodes the first name, and compares the others as texts.

        numbers: of the names. outer: those that stand before them in all names.
        """
        if not listed or len(listed) != len(numbers) or None in numbers or not listed[0]:
            return None
        template, *found = self.encode(listed[0])
        if found != [*outer, numbers[0]]:
            return None
        begin, _, end = listed[0].rpartition(f".{numbers[0]}.")
        return template if begin and list(listed) == [f"{begin}.{number}.{end}" for number in numbers] else None

    def to_json(self) -> list[list[str]]:
        """Return the pieces of every template; numbers stand between them."""
        return [list(template) for template in self._numbers]


def encode_picture(picture: Picture, names: NameTable) -> dict[str, Any]:
    """Return a picture as JSON with short keys: most of a page is numbers.

    names: the page's table of names, which grows.
    """
    match picture:
        case HeatMap():
            form = _encode_heat_map(picture, names)
        case Curves():
            form = {
                "kind": "curves",
                "x": [value if isinstance(value, str) else round_number(value) for value in picture.x],
                "series": [_encode_series(series, names) for series in picture.series],
                "marks": [[mark.series, mark.index, mark.text] for mark in picture.marks],
                "steps": picture.steps,
            }
        case Histogram():
            form = {
                "kind": "histogram",
                "edges": [*map(round_number, picture.edges)],
                "series": [_encode_series(series, names) for series in picture.series],
            }
        case TextTable():
            form = {
                "kind": "text",
                "columns": list(picture.columns),
                "rows": [
                    [[cell.text, cell.state, cell.note, names.encode(cell.name) if cell.name else 0] for cell in row]
                    for row in picture.rows
                ],
            }
        case NoPicture():
            form = {"kind": "none"}
    form |= {"title": picture.title, "caption": picture.caption}
    if states := getattr(picture, "states", ()):
        form["states"] = [asdict(state) for state in states]
    if codes := getattr(picture, "codes", ()):
        form["codes"] = list(codes)
    for key in ("scale", "x_label", "y_label"):
        if hasattr(picture, key):
            form[key] = getattr(picture, key)
    return _clean(form)  # type: ignore[no-any-return]


def round_number(value: float | None) -> float | int | None:
    """Return a number with few digits; None for NaN and infinity, which JSON cannot hold.

    >>> round_number(0.123456), round_number(2.0), round_number(123456), round_number(float("nan"))
    (0.1235, 2, 123456, None)
    """
    if value is None or not isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def _clean(form: Any) -> Any:
    """Return a JSON value whose texts have no control characters: anybody may choose the names of tensors."""
    if isinstance(form, str):
        return printable(form)
    if isinstance(form, dict):
        return {key: _clean(value) for key, value in form.items()}
    return [_clean(value) for value in form] if isinstance(form, list) and _has_text(form) else form


def _has_text(form: list[Any]) -> bool:
    return any(isinstance(value, (str, list, dict)) for value in form)


def _encode_series(series: Series, names: NameTable) -> dict[str, Any]:
    return {
        "name": series.name,
        "values": [*map(round_number, series.values)],
        **({"tone": series.tone} if series.tone else {}),
        **({"dotted": True} if series.is_dotted else {}),
        **({"keys": [names.encode(key) for key in series.keys]} if series.keys else {}),
    }


def _encode_heat_map(picture: HeatMap, names: NameTable) -> dict[str, Any]:
    letters = _state_letters(picture.states)
    rows = []
    for row in range(len(picture.rows)):
        cells = {column: picture.cells.get((row, column)) for column in range(len(picture.columns))}
        form = _encode_cells(list(cells.values()), picture.columns, letters, names)
        members = {
            column: _encode_members(cell.members, letters, names, (_number(picture.columns[column]),))
            for column, cell in cells.items()
            if cell is not None and cell.members
        }
        rows.append(form | ({"members": members} if members else {}))
    return {
        "kind": "heat",
        "rows": list(picture.rows),
        "columns": list(picture.columns),
        "cells": rows,
        "value": picture.value_label,
        "labels": [picture.row_label, picture.column_label, picture.member_label],
    }


def _state_letters(states: Sequence[State]) -> dict[str, str]:
    return {"": STATELESS} | {state.name: chr(FIRST_STATE + number) for number, state in enumerate(states)}


def _encode_members(
    members: Mapping[str, HeatCell], letters: Mapping[str, str], names: NameTable, outer: tuple[int | None, ...]
) -> dict[str, Any]:
    if not isinstance(members, AlikeCells):
        return _encode_cells(list(members.values()), tuple(members), letters, names, outer)
    labels = tuple(members.labels)
    number, written = _read_labels(labels)
    template, *found = names.encode(f"{members.begin}{labels[0]}{members.end}")
    if number is None or found != [*outer, number] or (members.begin[-1:], members.end[:1]) != (".", "."):
        return _encode_cells(list(members.values()), labels, letters, names, outer)
    form = _encode_cells([members.cell], (), letters, names)
    repeated = {key: form[key] * len(labels) for key in ("s", "v") if key in form}
    notes = {"notes": dict.fromkeys(range(len(labels)), members.cell.note)} if members.cell.note else {}
    return repeated | notes | {"n": template, "l": written}


def _encode_cells(
    cells: Sequence[HeatCell | None],
    labels: Sequence[str],
    letters: Mapping[str, str],
    names: NameTable,
    outer: tuple[int | None, ...] = (),
) -> dict[str, Any]:
    """Return a row of cells: values, states as one text, and notes and names, if any.

    labels: of the cells; names that only differ in this number are written once. outer: the number that stands before it,
    None where the label of the column is none; () for cells that stand in no other one.
    """
    form: dict[str, Any] = {
        "s": "".join(ABSENT if cell is None else letters[cell.state] for cell in cells),
    }
    if any(cell is not None and cell.value is not None for cell in cells):
        form["v"] = [round_number(cell.value) if cell is not None else None for cell in cells]
    if notes := {at: cell.note for at, cell in enumerate(cells) if cell is not None and cell.note}:
        form["notes"] = notes
    numbers = [*map(_number, labels)]
    template = names.find_template([cell.name for cell in cells if cell is not None], numbers, outer) if outer else None
    if template is not None:
        form["n"] = template
    else:
        codes = [names.encode(cell.name) if cell is not None and cell.name else None for cell in cells]
        if any(codes):
            form["n"] = _join_codes(codes, numbers, outer)
    if outer:
        form["l"] = _read_labels(tuple(labels))[1]
    return form


def _join_codes(
    codes: Sequence[Code | None], numbers: Sequence[int | None], outer: tuple[int | None, ...]
) -> int | list[Code | None] | dict[int, Code]:
    """Return the one template of all names where `numbers`, those of the labels, stand in them; else the code of every name.

    Where few cells have a name, it is place → code.
    """
    known = {at: code for at, code in enumerate(codes) if code is not None}
    templates = {code[0] for code in known.values()}
    is_regular = len(templates) == 1 and all(code[1:] == [*outer, numbers[at]] for at, code in known.items())
    if is_regular:
        return templates.pop()
    return known if 2 * len(known) < len(codes) else list(codes)


@lru_cache(1 << 12)  # the experts of each layer have the same numbers
def _number(label: str) -> int | None:
    return int(label) if NUMBER.fullmatch(label) else None


@lru_cache(16)
def _read_labels(labels: tuple[str, ...]) -> tuple[int | None, int | list[str]]:
    """Return the first of labels that all are numbers, else None; and the labels as they are written: how many, if they count."""
    numbers = [*map(_number, labels)]
    return None if None in numbers else numbers[0], len(labels) if numbers == list(range(len(labels))) else list(labels)
