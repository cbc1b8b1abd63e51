"""Steps in a row that changed nothing."""

from __future__ import annotations

from ckptcheck.history.history import History, Turn


def frozen(history: History) -> list[list[Turn]]:
    """Return the runs of steps, one after the other, in which no digest changed."""
    found: list[list[Turn]] = []
    last: list[Turn] | None = None
    for turn in history.steps:
        if turn.same is None:
            last = None
            continue
        if last is None:
            last = []
            found.append(last)
        last.append(turn)
    return found
