"""Writes build/fault-matrix.md from the results of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fault_matrix.fault import Fault
from tests.paths import ROOT

PAGE = ROOT / "build" / "fault-matrix.md"
RESULTS = ROOT / "tests" / "data" / "fault_matrix.json"
COLUMNS = ("fault", "what is done", "detected", "cause", "tensor", "part", "rank", "party", "rules")
HEAD = """\
# The fault matrix

Faults are put into real engines and a real trainer from outside, and a whole trial of `ckptcheck refit` runs over each. What each
report should say was written down before the run (`tests/fault_matrix/faults/`; its words were widened where a report says
the same in others). `make faults` (`python -m tests.fault_matrix`) writes this page.

- **detected**: an expected rule spoke: *yes* as an error, *warning* as a warning; *other*: only other rules did; *no*: nothing did.
- **cause**: *right* if a finding names it; *vague* if none names a cause; *wrong* if findings name another one.
- **party**: whether what was sent for a wrong tensor arrived at the engine's `load_weights` tells a transport from a loader; "the
  engine's loader, or what ran after it" counts for a loader, and not for the engine's state.
- **tensor**, **part** (of a fused tensor), **rank**, **party** (exporter, trainer, transport, loader, engine state, compute):
  whether a finding names it; – where there is none to name.

"""


def read_results(path: Path = RESULTS) -> dict[str, Any]:
    """Return the results of a run: {"versions", "dates", "sound", "grades"}."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def merge_results(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return results with the newer of each fault and engine."""
    grades = {(each["fault"], each["engine"]): each for each in (*old.get("grades", ()), *new["grades"])}
    sound = {(each["engine"], each["model"], each["ranks"]): each for each in (*old.get("sound", ()), *new["sound"])}
    return {
        "versions": {**old.get("versions", {}), **new["versions"]},
        "dates": {**old.get("dates", {}), **new.get("dates", {})},
        "sound": [sound[key] for key in sorted(sound)],
        "grades": [grades[key] for key in sorted(grades)],
    }


def format_page(results: Mapping[str, Any], faults: Sequence[Fault]) -> str:
    """Return the page."""
    return HEAD + "\n".join((*_summary(results), "", *_sections(results["grades"], faults))) + "\n"


def format_totals(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of totals, a column an engine so that a page holds it, which docs/refit.md has too."""
    columns = []
    for engine in sorted({each["engine"] for each in results["grades"]}):
        grades = [each for each in results["grades"] if each["engine"] == engine]
        seconds = sorted(each["seconds"] for each in grades)[len(grades) // 2]
        column = {"": f"{engine} {results['versions'].get(engine, '')}", "---": "---"}
        column["detected"] = _share(grades, "detected", "yes", "warning")
        column["cause right"] = _share(grades, "cause", "right")
        for key in PLACE:
            column[f"{key} named"] = _share([each for each in grades if each[key] in ("yes", "no")], key, "yes")
        columns.append({**column, "seconds a fault": f"{seconds:.0f}"})
    for name in columns[0]:
        yield f"| {' | '.join([name, *(column[name] for column in columns)])} |"


def _summary(results: Mapping[str, Any]) -> Iterator[str]:
    yield from format_totals(results)
    yield ""
    dates = "; ".join(f"{engine}: last run on {day}" for engine, day in sorted(results.get("dates", {}).items()))
    yield f"Measured on a CPU: float32, a tiny Qwen3-MoE, trained by Megatron on two ranks. {dates}."
    yield ""
    yield "Sound trials, with the same processes and no fault:"
    yield ""
    for each in results["sound"]:
        rules = ", ".join(each["codes"]) or "quiet"
        yield f"- {each['engine']} ×{each['ranks']}, {each['model']}, trainer TP2: {each['trials']} trials, {rules}"


PLACE = ("tensor", "part", "rank", "party")


def _share(grades: Iterable[Mapping[str, Any]], key: str, *words: str) -> str:
    listed = list(grades)
    return f"{sum(each[key] in words for each in listed)} of {len(listed)}"


def _sections(grades: Sequence[Mapping[str, Any]], faults: Sequence[Fault]) -> Iterator[str]:
    found = {(each["fault"], each["engine"]): each for each in grades}
    for family in dict.fromkeys(fault.family for fault in faults):
        yield f"## {family.capitalize()}"
        yield ""
        yield "| " + " | ".join(COLUMNS) + " |"
        yield "|" + "---|" * len(COLUMNS)
        for fault in faults:
            if fault.family == family:
                rows = [found.get((str(fault), engine)) for engine in fault.engines]
                yield _row(fault, [row for row in rows if row is not None])
        yield ""


def _row(fault: Fault, rows: Sequence[Mapping[str, Any]]) -> str:
    def cell(key: str) -> str:
        words = [str(row[key]) or "–" for row in rows]
        return " / ".join(dict.fromkeys(words)) if len(set(words)) == 1 else " / ".join(words)

    codes = " / ".join(dict.fromkeys(", ".join(row["codes"]) or "–" for row in rows))
    missing = [engine for engine in fault.engines if engine not in [row["engine"] for row in rows]]
    note = "" if len(fault.engines) > 1 else f" ({fault.engines[0]} only)"
    note += f" (not run on {' or '.join(missing)})" if missing and rows else ""
    cells = [fault.name + note, fault.says, *(cell(key) for key in ("detected", "cause", *PLACE)), codes]
    return "| " + " | ".join(cells if rows else [*cells[:2], "not run", *[""] * 6]) + " |"
