"""The table of the syncs: what was sent, how much of it changed, what the engine made of it, and what all that cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.phrase import few
from ckptcheck.report import Cell, Section

if TYPE_CHECKING:
    from ckptcheck.history.history import History

COLUMNS = (
    "sync",
    "step",
    "version",
    "loss",
    "sent",
    "changed",
    "engine holds",
    "changed there",
    "MB",
    "sync s",
    "check s",
)


def told(history: History) -> tuple[Section, ...]:
    """Return one row for each sync, and below it what never changed."""
    turns = {turn.index: turn for turn in history.turns}
    rows: list[tuple[Cell, ...]] = []
    for index, sync in enumerate(history.syncs):
        turn = turns.get(index)
        rows.append(
            (
                index + 1,
                sync.step,
                sync.version,
                sync.loss,
                len(sync.sent) or None,
                len(turn.moved) if turn and sync.sent else None,
                len(sync.held) or None,
                len(turn.turned) if turn and sync.held else None,
                sync.nbytes / 1e6 if sync.nbytes else None,
                sync.seconds or None,
                sync.checked or None,
            )
        )
    never = history.never if history.steps else ()
    total = len(history.syncs[-1].sent)
    lines = (f"never changed: {len(never):,} of {total:,} that were sent: {few(never)}",) if never else ()
    return (Section("weight syncs", COLUMNS, tuple(rows), lines),)
