"""A save is not whole.

## What it checks
- Each folder that has the name of a save holds a checkpoint.
- All files that hold the weights are there and can be read: shards, the table of contents, the files of ranks. So are the files
  beside them that hold the optimizer, the random numbers and the counters. A link out of the save is not followed, unless
  `--follow-links` says so.

## Why it matters
- A trainer cannot resume from the last save, or resumes without a part of it. ckptcheck cannot compare an incomplete earlier save,
  so the steps around it stay unchecked.

## How to fix
- `ckptcheck scan` on the folder says what is missing. If the job still writes the save, wait. If not, resume from the save before.

## When it can be wrong
- The last save is still being written.

## Seen in
KempnerInstitute/KempnerForge#102 (the tracker moved before the shards were durable), NVIDIA-NeMo/RL#3312
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import join_truncated

UNREAD = "training_args.bin"
"""transformers' Trainer writes it into each save, and reads it in none (measured with 5.19.0: it resumes with a torn one)."""


@rule("SER009", "unfinished-save", severity="error", on="saves")
def check(series: SaveSeries) -> Iterator[Problem]:
    last_step = max(save.number for save in series.saves)
    for folder, number in series.empty_folders.items():
        other = series.find_resumable(number) if number > last_step else None
        yield Problem(
            f"{folder} holds no checkpoint",
            file=folder,
            severity="error" if number > last_step else "warning",
            hint="the save of this step failed or has not begun to write; look into the log of the job"
            + (f"; resume from {other.name} instead" if other else ""),
        )
    for strand in series.strands:
        for save in strand.saves:
            if save.defects:
                is_last = save.number == strand.last.number
                other = series.find_resumable(save.number) if is_last else None
                lacks = [
                    lack
                    for name, each in series.lacks.items()
                    if is_last and not save.is_one_file and f"{save.name}/".startswith(f"{name}/")
                    for lack in each
                ]
                is_needed = any(UNREAD not in each for each in save.defects) or any(
                    lack.severity == "error" for lack in lacks
                )
                yield Problem(
                    f"{save.name} is not whole: {join_truncated(save.defects)}"
                    + (f"; it lacks {join_truncated([lack.name for lack in lacks])} too" if lacks else ""),
                    file=save.name,
                    severity="error" if is_last and is_needed else "warning",
                    hint=f"resume from {other.name} instead, or wait until the save is written"
                    if other
                    else f"ckptcheck scan {save.address} says what is missing of its weights",
                )
