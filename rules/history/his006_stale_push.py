"""The trainer sent what it had sent at an older step.

## What it checks
No matrix that changed since comes back, bit for bit, to what was sent at an earlier step than the one before.

## Why it matters
Numbers do not come back by training. A buffer that is used in turns, a checkpoint that was loaded in between, or two senders push
an old policy under a new version.

## How to fix
Look at who else writes to the engine, and at buffers that are filled while they are sent.

## When it can be wrong
A job that goes back to an older checkpoint on purpose, and goes on counting steps.

## Seen in
radixark/miles#1724 (a recovered engine serves an old sync), THUDM/slime#1695 (after a resume)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History, matrices
from ckptcheck.phrase import count, few


@rule("HIS006", "stale-push", severity="error", on="history", when=lambda history: len(history.steps) > 1)
def check(history: History) -> Iterator[Problem]:
    for turn in history.steps:
        older = range(turn.earlier - 1, -1, -1)
        found: dict[int, list[str]] = {}
        for name in matrices(turn.moved):
            now = turn.after.sent[name]
            for index in older:
                past = history.syncs[index]
                if past.run == turn.after.run and past.sent.get(name) == now:
                    found.setdefault(index, []).append(name)
                    break
        for index, names in sorted(found.items()):
            whole = len(names) == sum(1 for _ in matrices(turn.moved))
            what = "everything that changed" if whole else count(len(names), "tensor")
            yield Problem(
                f"{history.name(turn.index)}: {what} was sent as it was at {history.name(index)}: {few(names)}",
                key=sorted(names)[0],
                hint="look at who else writes, and at buffers that are reused while they are sent",
            )
