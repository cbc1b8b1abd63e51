"""The table of a series: one row for each save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckptcheck.linter.report import Cell, Section

if TYPE_CHECKING:
    from ckptcheck.runs.saves.strand import Strand

COLUMNS = ("save", "step", "form", "weights", "moved", "moments", "moved there", "update", "identity")


def list_sections(strands: Sequence[Strand]) -> tuple[Section, ...]:
    """Return the table of the saves."""
    rows: list[tuple[Cell, ...]] = []
    for strand in strands:
        before = {interval.after.name: interval for interval in strand.intervals}
        for save in strand.saves:
            interval = before.get(save.name)
            rows.append(
                (
                    save.name,
                    save.number,
                    save.form or None,
                    len(save.weights),
                    len(interval.moved) if interval else None,
                    len(save.moments),
                    len(interval.moved_states & save.moments.keys()) if interval else None,
                    interval.distance if interval else None,
                    save.identity[:12] or None,
                )
            )
    return (Section("saves", COLUMNS, tuple(rows)),)
