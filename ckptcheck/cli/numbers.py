"""Numbers that a user gives."""

from __future__ import annotations

from math import isfinite

import typer


def finite(value: float | None) -> float | None:
    """Take a finite number that is not negative; nothing is larger than NaN, and everything is within infinity.

    A callback of an option: what it refuses is trouble with the command (exit 2).
    """
    if value is not None and not (isfinite(value) and value >= 0):
        raise typer.BadParameter(f"{value:g} is no finite number from 0 on")
    return value
