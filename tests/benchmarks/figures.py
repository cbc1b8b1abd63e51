"""One line for each figure, beside its goal where it has one."""

from __future__ import annotations

missed: list[str] = []
"""What fell short of its goal so far."""


def line(what: str, found: str, goal: str) -> None:
    """Print one figure. found: a number, or several with strokes between; goal: ``≤ 3``, ``≥ 0.5`` or nothing."""
    short = bool(goal) and any(not _met(float(number), goal) for number in found.split("/"))
    if short:
        missed.append(what)
    print(f"{what:<64} {found:>10}   {goal}{'   missed' if short else ''}", flush=True)


def _met(number: float, goal: str) -> bool:
    sign, limit = goal.split()
    return number <= float(limit) if sign == "≤" else number >= float(limit)
