"""Finds the tensors in an object that a trainer sends in place of names and tensors, such as the flush of a delta."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

DEPTH = 4
"""Levels of nested lists, tuples, mappings and dataclasses to search."""


def find_tensors(item: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield where each torch tensor and numpy array lies within an item, and the tensor: ``values``, ``0.__values__``.

    A pair of a name and something else counts as a mapping of one. Whatever else there is, such as numbers and flags, is left out.

    >>> import numpy
    >>> values = numpy.zeros(3)
    >>> [path for path, _ in find_tensors(([("spec", values), ("values", values)], True))]
    ['0.spec', '0.values']
    """
    if hasattr(item, "nbytes") and hasattr(item, "shape"):
        yield path or "0", item
        return
    for name, inner in _list_members(item) if depth else ():
        yield from find_tensors(inner, f"{path}.{name}" if path else name, depth - 1)


def _list_members(item: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        yield from ((field.name, getattr(item, field.name)) for field in dataclasses.fields(item))
    elif isinstance(item, Mapping):
        yield from ((str(name), inner) for name, inner in item.items())
    elif isinstance(item, list | tuple):
        for number, inner in enumerate(item):
            if isinstance(inner, tuple) and len(inner) == 2 and isinstance(inner[0], str):
                yield inner
            else:
                yield str(number), inner
