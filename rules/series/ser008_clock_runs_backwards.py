"""A save was written before one with a lower step.

## What it checks
- The newest file of each save is not older than that of the save before, by more than a minute.

## Why it matters
- The run was taken back to an earlier save and goes on from there: the later saves are of a branch that was given up. Or the
  clocks of two machines differ.

## How to fix
- If the run was taken back, remove the saves of the branch that was given up, or move them away.

## When it can be wrong
- Files that are copied or unpacked without their times have the order in which they were copied. So this is only information.

## Seen in
Runs that diverged and were restarted from an earlier save into the same folder
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import format_duration

MINUTE = 60.0


@rule(
    "SER008",
    "clock-runs-backwards",
    severity="info",
    on="saves",
    when=lambda series: any(len([save for save in strand.saves if save.written]) > 1 for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        for before, after in pairwise([save for save in strand.saves if save.written is not None]):
            if before.written - after.written > MINUTE and after.number > before.number:  # type: ignore[operator]
                yield Problem(
                    f"{after.name} was written {format_duration(before.written - after.written)} before {before.name}"  # type: ignore[operator]
                    f" ({_tell(after.written)} and {_tell(before.written)})",
                    file=after.name,
                    hint="if the run was taken back to an earlier save, one of both is of a branch that was given up",
                )


def _tell(seconds: float | None) -> str:
    try:
        return datetime.fromtimestamp(seconds or 0.0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a kept save may say any time
        return "at a time that no calendar has"
