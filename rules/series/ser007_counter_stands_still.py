"""A counter stands still or falls from save to save, while the steps rise.

## What it checks
- Iterations, steps, samples and the steps of the scheduler and of the optimizer rise with the step in the folder's name. A counter
  that has never moved is not used, and is left out, unless it is the one that says the step.

## Why it matters
- The file of this counter is of an earlier save: the learning rate, the data or the optimizer's correction of its moments go back
  when the trainer resumes.

## How to fix
- Save again. If it is the scheduler's counter alone, look whether the scheduler is stepped at all.

## When it can be wrong
- The optimizer or the schedule was started anew on purpose in the middle of a run: `--ignore SER007`.

## Seen in
NVIDIA-NeMo/RL#3312 (an asynchronous save that writes the state of another step)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.counters import find_step_counter
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries


@rule(
    "SER007",
    "counter-stands-still",
    severity="error",
    on="saves",
    when=lambda series: any(len([save for save in strand.saves if save.counters]) > 1 for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        paths = dict.fromkeys(path for save in strand.saves for path in save.counters)
        for path in paths:
            yield from _check_counter(path, [save for save in strand.saves if path in save.counters])


def _check_counter(path: str, saves: list[Save]) -> Iterator[Problem]:
    is_used = len({save.counters[path] for save in saves}) > 1
    for before, after in pairwise(saves):
        earlier, later = before.counters[path], after.counters[path]
        step = find_step_counter(after)
        if after.number <= before.number or later > earlier or not (is_used or (step is not None and step[0] == path)):
            continue
        if step is not None and step[0] == path and step[1] != after.number:
            continue  # SER006 says it
        what = "stands still" if later == earlier else "falls"
        numbers = f"at {later:.0f}" if later == earlier else f"from {earlier:.0f} to {later:.0f}"
        yield Problem(
            f"{after.name}: {path} {what} {numbers} since {before.name}, {after.number - before.number} steps earlier",
            file=f"{after.name}/{path.partition(':')[0]}",
            hint="this file is of an earlier save, or what it counts has stopped: do not resume from it before that is known",
        )
