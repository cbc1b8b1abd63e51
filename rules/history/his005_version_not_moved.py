"""The engine's weight version did not move on with a sync.

## What it checks
Where the engine reports a version, it is another one after every step, and a larger one where both are numbers.

## Why it matters
Off-policy corrections and filters for stale samples count versions. One that stands still makes them inert, one that falls makes
staleness negative.

## How to fix
Pass the step as the version to the update call.

## When it can be wrong
Versions that are hashes are no numbers: only that they change is checked then.

## Seen in
radixark/miles#2244 (57 to 1 on failover), vLLM 0.32 (the version stays `default` unless finish_weight_update is given one)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.history.history import History, Turn


def _told(history: History) -> list[Turn]:
    return [turn for turn in history.turns if turn.before.version is not None and turn.after.version is not None]


@rule("HIS005", "version-not-moved", severity="error", on="history", when=lambda history: bool(_told(history)))
def check(history: History) -> Iterator[Problem]:
    for turn in _told(history):
        before, after = turn.before.version or "", turn.after.version or ""
        falls = before.isdecimal() and after.isdecimal() and int(after) < int(before)
        if falls or (turn.stepped and before == after):
            yield Problem(
                f"{history.name(turn.index)}: the weight version "
                + (f"fell from {before} to {after}" if falls else f"stayed {after}"),
                hint="pass the step to the update call as the version",
            )
            return
