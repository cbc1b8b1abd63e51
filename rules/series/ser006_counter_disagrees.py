"""A counter inside a save disagrees with the step in its folder's name, or with another rank.

## What it checks
- `iteration` in Megatron's iter_N and `global_step` in transformers' checkpoint-N are N. Other folders may count anything. Where
  every save differs by the same number, the run counts from elsewhere, and the rule is quiet.
- The files of several ranks count the same.

## Why it matters
- A trainer resumes at the step that the counter says: it repeats data and schedule, or skips them. If the counter is that of an
  earlier save, then so may be everything beside it.

## How to fix
- Compare the weights too: SER001 and SER002 say whether they are of the earlier save. Save again.

## When it can be wrong
- Somebody renamed the folder.

## Seen in
NVIDIA-NeMo/RL#3312 (an asynchronous save that writes the state of another step)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.counters import find_step_counter
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.state_files import share_name


@rule(
    "SER006",
    "counter-disagrees",
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
                    hint="do not resume from it before its weights are known to be of this step; save again",
                )
            for path, value in save.counters.items():
                file, _, key = path.partition(": ")
                shared = share_name(file) + f": {key}"
                if shared != path and shared in save.counters:
                    yield Problem(
                        f"{save.name}: {path} is {value:.0f}, and {save.counters[shared]:.0f} on other ranks",
                        file=f"{save.name}/{file}",
                        hint="the files of the ranks are of different steps: save again",
                    )
