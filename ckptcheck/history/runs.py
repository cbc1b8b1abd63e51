"""Steps in a row that sent the same."""

from __future__ import annotations

from ckptcheck.history.history import History, Turn


def frozen(history: History) -> list[list[Turn]]:
    """Return the runs of steps, one after the other, in which no sent digest changed."""
    found: list[list[Turn]] = []
    last: list[Turn] | None = None
    for turn in history.steps:
        if turn.moved or turn.before.sent.keys() != turn.after.sent.keys():
            last = None
            continue
        if last is None:
            last = []
            found.append(last)
        last.append(turn)
    return found
