"""A counter inside a save disagrees with its folder or another rank, or stands still.

## What it checks
- `iteration` in Megatron's iter_N and `global_step` in transformers' checkpoint-N are N. Other folders may count anything.
  If every save differs by the same number, the run starts its count elsewhere, and the rule is silent.
- The files of several ranks have the same counts.
- Iterations, steps, samples and the steps of the scheduler and of the optimizer rise with the step in the folder's name. The rule
  leaves out a counter that has never moved, unless it is the counter of the step itself.

## Why it matters
- A trainer resumes at the step that the counter says: it repeats data and schedule, or skips them. If the counter belongs to an
  earlier save, so may everything beside it.
- If the counter of the scheduler, the data or the optimizer stands still, the learning rate, the data or the optimizer's
  correction of its moments go back when the trainer resumes.

## How to fix
- Compare the weights too: SER001 says whether they are of the earlier save. Save again. If only the scheduler's counter is wrong,
  check that the job steps the scheduler.

## When it can be wrong
- Somebody renamed the folder. The optimizer or the schedule was started anew on purpose in the middle of a run: `--ignore
  SER006`.

## Seen in
NVIDIA-NeMo/RL#3312 (an asynchronous save that writes the state of another step)
"""

from collections.abc import Iterator
from itertools import pairwise

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import Save, find_step_counter
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.state_files import share_name


@rule(
    "SER006",
    "mistaken-counter",
    severity="error",
    on="saves",
    when=lambda series: any(save.counters for save in series.saves),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        counters = {save.name: find_step_counter(save) for save in strand.saves}
        offsets = {
            name: counter[1] - save.number
            for save in strand.saves
            if (counter := counters[name := save.name]) is not None
        }
        is_shifted = len(offsets) > 1 and len(set(offsets.values())) == 1
        for save in strand.saves:
            counter = counters[save.name]
            if counter is not None and offsets[save.name] and not is_shifted:
                yield Problem(
                    f"{save.name}: {counter[0]} is {counter[1]:.0f}, and the folder says {save.number}",
                    file=f"{save.name}/{counter[0].partition(':')[0]}",
                    hint="the folder was renamed, or this file is of another save: resume once the step of the weights is known",
                )
            for path, value in save.counters.items():
                file, _, key = path.partition(": ")
                shared = share_name(file) + f": {key}"
                if shared != path and shared in save.counters:
                    yield Problem(
                        f"{save.name}: {path} is {value:.0f}, and {save.counters[shared]:.0f} on other ranks",
                        file=f"{save.name}/{file}",
                        hint="the files of the ranks are of different steps: use another save, or save again",
                    )
        for path in dict.fromkeys(path for save in strand.saves for path in save.counters):
            yield from _find_standstill(path, [save for save in strand.saves if path in save.counters])


def _find_standstill(path: str, saves: list[Save]) -> Iterator[Problem]:
    """Yield the saves in which one counter is no higher than in the save before."""
    is_used = len({save.counters[path] for save in saves}) > 1
    for before, after in pairwise(saves):
        earlier, later = before.counters[path], after.counters[path]
        step = find_step_counter(after)
        if after.number <= before.number or later > earlier or not (is_used or (step is not None and step[0] == path)):
            continue
        if step is not None and step[0] == path and step[1] != after.number:
            continue  # the comparison with the folder's step has this counter
        what = "stands still" if later == earlier else "falls"
        numbers = f"at {later:.0f}" if later == earlier else f"from {earlier:.0f} to {later:.0f}"
        yield Problem(
            f"{after.name}: {path} {what} {numbers} since {before.name}, {after.number - before.number} steps earlier",
            file=f"{after.name}/{path.partition(':')[0]}",
            hint="this file is of an earlier save, or what it counts has stopped: do not resume from it before that is known",
        )
