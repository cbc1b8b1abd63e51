"""What the syncs come to: a table of them, and which tensors changed at each."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ckptcheck.phrase import few, ranges
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
    "time",
)


def told(history: History) -> tuple[Section, ...]:
    """Return one row for each sync with what never changed below it, and one for each tensor that changed at a sync."""
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
                sync.time or None,
            )
        )
    never = history.never if history.steps else ()
    total = len(history.syncs[-1].sent)
    lines = (f"never changed: {len(never):,} of {total:,} that were sent: {few(never)}",) if never else ()
    return (Section("weight syncs", COLUMNS, tuple(rows), lines), *_changed(history))


def _changed(history: History) -> tuple[Section, ...]:
    """Return the tensors that changed at each sync: all of them as rows, and in a few words what a person reads of it."""
    rows: list[tuple[Cell, ...]] = []
    words: list[tuple[list[int], str]] = []
    for turn in history.turns:
        said = []
        for side, where, changed, before, after in (
            ("sent", "that were sent", turn.moved, turn.before.sent, turn.after.sent),
            ("engine", "in the engine", turn.turned, turn.before.held, turn.after.held),
        ):
            rows += [(turn.index + 1, side, name) for name in after if name in changed]
            if before and after:
                said.append(_words(where, changed, [name for name in after if name in before]))
        if said and words and words[-1][1] == "; ".join(said):
            words[-1][0].append(turn.index + 1)
        elif said:
            words.append(([turn.index + 1], "; ".join(said)))
    if not words:
        return ()
    brief = tuple(f"sync {ranges(numbers)}: {what}" for numbers, what in words)
    return (Section("changed since the sync before", ("sync", "side", "tensor"), tuple(rows), brief=brief),)


def _words(where: str, changed: Collection[str], names: Collection[str]) -> str:
    """Say how many changed of those that were there both times, and name the fewer: those that did, or those that did not."""
    rest = [name for name in names if name not in changed]
    if not rest or not changed:
        return f"{'none of' if rest else 'all'} {len(names):,} {where}"
    named = f"not {few(rest)}" if len(rest) < len(changed) else few(changed)
    return f"{len(changed):,} of {len(names):,} {where}, {named}"
