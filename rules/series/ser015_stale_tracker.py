"""The file that says from which save to resume names another one than the last.

## What it checks
- `latest_checkpointed_iteration.txt` (Megatron, verl, slime) and `latest` (DeepSpeed) name a save that exists, and the last one
  that the trainer can resume from.

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
from ckptcheck.runs.saves.find_saves import read_step
from ckptcheck.runs.saves.save_series import SaveSeries

NUMBER = re.compile(r"\d{1,15}")


@rule("SER015", "stale-tracker", severity="error", on="saves", when=lambda series: bool(series.trackers))
def check(series: SaveSeries) -> Iterator[Problem]:
    newest = series.find_resumable()
    for file, text in series.trackers.items():
        folder = file.rpartition("/")[0]
        steps = [
            {save.number for save in strand.saves}
            for strand in series.strands
            if not folder or strand.name.startswith(f"{folder}/")
        ]
        if not steps:
            continue
        named = int(text) if NUMBER.fullmatch(text) else (read_step([text.rpartition("/")[2]]) or (0, "", None))[2]
        last = max(max(of_strand) for of_strand in steps)
        with_it = [max(of_strand) for of_strand in steps if named in of_strand]
        if named is None:
            if text != "release":
                yield Problem(
                    f"{file} says {text[:80]!r}, which is no step",
                    file=file,
                    hint="write the step of the last whole save into it",
                )
        elif not with_it:
            yield Problem(
                f"{file} says {named}, and there is no such save; the last is of step {last}",
                file=file,
                hint=f"a trainer does not find it: write {last} into the file, if that save is whole",
            )
        elif named < min(with_it) and (newest is None or newest.number != named):
            yield Problem(
                f"{file} says {named}, and the last save is of step {min(with_it)}",
                file=file,
                severity="warning",
                hint=f"a trainer resumes at {named} and writes over what came after; if that is not meant, see whether"
                f" {min(with_it)} is whole",
            )
