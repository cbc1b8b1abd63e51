"""One line for each figure, beside its goal where it has one; what was measured is kept in tests/data/figures.json."""

from __future__ import annotations

import json

from tests.paths import DATA

KEPT = DATA / "figures.json"
"""Benchmark → figure → what was last measured. README.md and docs/limits.md show some of them (tests/test_pages.py)."""
missed: list[str] = []
"""What fell short of its goal so far."""
measured: dict[str, str] = {}
"""Figure → what the benchmark that runs has measured so far."""


def line(what: str, found: str, goal: str) -> None:
    """Print one figure. found: a number, or several with strokes between; goal: ``≤ 3``, ``≥ 0.5`` or nothing."""
    short = bool(goal) and any(not _met(float(number), goal) for number in found.split("/"))
    if short:
        missed.append(what)
    measured[what] = found
    print(f"{what:<64} {found:>10}   {goal}{'   missed' if short else ''}", flush=True)


def _met(number: float, goal: str) -> bool:
    sign, limit = goal.split()
    return number <= float(limit) if sign == "≤" else number >= float(limit)


def keep(benchmark: str) -> None:
    """Write what a benchmark has measured, in place of what it measured before, and begin anew."""
    kept = read_kept() if KEPT.is_file() else {}
    kept[benchmark] = dict(measured)
    measured.clear()
    KEPT.write_text(json.dumps(kept, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def read_kept() -> dict[str, dict[str, str]]:
    """Return benchmark → figure → what was last measured."""
    kept: dict[str, dict[str, str]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept
