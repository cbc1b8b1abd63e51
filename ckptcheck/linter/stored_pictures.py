"""Writes pictures as JSON and reads them again, so that a saved report can be drawn later, beside others.

A picture is an object with the name of its class (`kind`) and its fields as `linter/pictures.py` describes them; fields with their
default value are left out. The cells of a heat map are rows of [row, column, cell].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite, prod
from typing import Any, get_args

import msgspec

from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, Picture

KINDS = {kind.__name__: kind for kind in get_args(Picture)}
"""Pictures by the name of their class."""
MOST_CELLS = 1 << 22
"""Most rows × columns of a heat map: the file may be hostile."""


def picture_to_json(picture: Picture) -> dict[str, Any]:
    """Return the JSON form of a picture. Numbers that are not finite become null."""
    form: dict[str, Any] = {"kind": type(picture).__name__} | _strip(picture)
    if isinstance(picture, HeatMap):
        form["cells"] = [[*where, _strip(cell)] for where, cell in picture.cells.items()]
    return form


def _strip(value: Any) -> Any:
    if is_dataclass(value):
        kept: dict[str, Any] = {}
        for field in fields(value):
            inner = getattr(value, field.name)
            if isinstance(value, HeatMap) and field.name == "cells":
                continue
            if inner != (field.default_factory() if field.default_factory is not MISSING else field.default):
                kept[field.name] = _strip(inner)
        return kept
    if isinstance(value, HeatCell):
        defaults = msgspec.structs.fields(HeatCell)
        return {
            field.name: _strip(inner) for field in defaults if (inner := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Mapping):
        return {key: _strip(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_strip(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else {}


def load_picture(form: Any) -> Picture:
    """Return the picture of a JSON form; `NoPicture` with the reason if the form is malformed."""
    title = form.get("title") if isinstance(form, dict) else None
    title = title if isinstance(title, str) else "A picture"
    try:
        given = dict(form)
        kind = KINDS[given.pop("kind")]
        if kind is HeatMap:
            if prod(len(given.get(axis, ())) for axis in ("rows", "columns")) > MOST_CELLS:
                return NoPicture(title, "it has more cells than anybody could read")
            given["cells"] = {(row, column): cell for row, column, cell in given["cells"]}
        picture: Picture = msgspec.convert(given, kind)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        return NoPicture(title, f"what was saved is no picture: {type(error).__name__}: {error}")
    return picture
