"""Formulas of config fields that give the dimensions of a tensor: ``a*b``, ``a*(2*b+c)``, ``a/b*c+d``.

``first|second`` is the first if all its fields have a value, else the second; ``a;b`` differs from layer to layer; ``?`` is
unknown. `fixtures/shape_formulas.py` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ckptcheck.checkpoint.layout import INDEX

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def find_place(name: str) -> str:
    """Return the pattern of a name, except that the innermost module keeps its number."""
    numbers = [*INDEX.finditer(name)]
    if not numbers or "." in name[numbers[-1].end() + 1 :]:
        return INDEX.sub("{}", name)
    return f"{INDEX.sub('{}', name[: numbers[-1].start()])}{name[numbers[-1].start() :]}"


def fields_of_formula(formula: str) -> list[str]:
    """Return the config fields in a formula, each once."""
    return list(dict.fromkeys(_NAME.findall(formula)))


def choose_size(sizes: list[int | None], stored: tuple[int, ...]) -> int | None:
    """Return the stored size if it is one of these, else the first; None if one of them is unknown."""
    if None in sizes:
        return None
    return stored[0] if stored and stored[0] in sizes else sizes[0]


def evaluate_choices(choices: str, size_of: Callable[[str], int | None]) -> tuple[int | None, str]:
    """Return the value of the first of ``formula|formula`` whose fields all have a value, and that formula."""
    formula = ""
    for formula in choices.split("|"):
        if (value := compute_size(formula, size_of)) is not None:
            return value, formula
    return None, formula


def compute_size(formula: str, size_of: Callable[[str], int | None]) -> int | None:
    """Return the value of ``a*b``, ``a*(2*b+c)`` or ``a/b*c+d``; None if a field has no value."""
    if formula == "?":
        return None
    outer, _, inner = formula.rstrip(")").partition("(")
    factors = [part for part in outer.split("*") if part] if inner else []
    values = [_evaluate_part(part, size_of) for part in factors]
    total: int | None = 0
    for term in (inner or outer).split("+"):
        product: int | None = 1
        for part in term.split("*"):
            value = _evaluate_part(part, size_of)
            product = None if product is None or value is None else product * value
        total = None if total is None or product is None else total + product
    for value in values:
        total = None if total is None or value is None else total * value
    return total


def _evaluate_part(part: str, size_of: Callable[[str], int | None]) -> int | None:
    whole, _, divisor = part.partition("/")
    if not divisor:
        return int(part) if part.removeprefix("-").isdigit() else size_of(part)
    size, by = size_of(whole), size_of(divisor)
    return size // by if size is not None and by is not None and by > 0 else None
