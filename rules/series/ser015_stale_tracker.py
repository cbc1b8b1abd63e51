"""The file that says from which save to resume names another one than the last.

## What it checks
- `latest_checkpointed_iteration.txt` (Megatron, verl, slime) and `latest` (DeepSpeed) name a save that exists, and the last one.

## Why it matters
- A trainer that finds no such save refuses, or begins anew. One that is sent to an earlier save repeats what was trained since, and
  overwrites the saves that it left.

## How to fix
- Write the step of the last whole save into the file, if that save is sound.

## When it can be wrong
- Somebody took the run back on purpose, or the job is writing the last save: for an earlier save it is only a warning.

## Seen in
KempnerInstitute/KempnerForge#102 (`latest` moved before the shards were durable)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.saves.find_saves import read_step
from ckptcheck.saves.save_series import SaveSeries

NUMBER = re.compile(r"\d{1,15}")


@rule("SER015", "stale-tracker", severity="error", on="saves", when=lambda series: bool(series.trackers))
def check(series: SaveSeries) -> Iterator[Problem]:
    numbers = sorted({save.number for save in series.saves})
    for file, text in series.trackers.items():
        named = int(text) if NUMBER.fullmatch(text) else (read_step([text.rpartition("/")[2]]) or (0, "", None))[2]
        if named is None:
            if text != "release":
                yield Problem(
                    f"{file} says {text[:80]!r}, which is no step",
                    file=file,
                    hint="write the step of the last save into it",
                )
        elif named not in numbers:
            yield Problem(
                f"{file} says {named}, and there is no such save; the last is of step {numbers[-1]}",
                file=file,
                hint=f"a trainer does not find it: write {numbers[-1]} into the file, if that save is whole",
            )
        elif named < numbers[-1]:
            yield Problem(
                f"{file} says {named}, and the last save is of step {numbers[-1]}",
                file=file,
                severity="warning",
                hint=f"a trainer resumes at {named} and writes over what came after; if that is not meant, see whether"
                f" {numbers[-1]} is whole",
            )
