"""The last save lacks a file or a part of the training state that every save before it has.

## What it checks
- The last save has the optimizer's tensors, and every file of the training state (optimizer, scheduler, random numbers, scaler,
  the trainer's own), if all saves before it have them.

## Why it matters
- A trainer that resumes from it begins with fresh moments or another schedule, mostly without a word, or refuses.

## How to fix
- Resume from the save before, or wait until the save is written completely.

## When it can be wrong
- The last save was meant for serving alone, not for resuming: `--ignore SER010`.

## Seen in
huggingface/transformers#35782 (a job that was stopped while it saved: the last folder lacks the trainer's state, and no resume
gets past it)
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count, join_truncated

STATE = re.compile(
    r"(optim|sched|rng|random_states|trainer_state|extra_state|scaler|train_state|training_info|(^|/)common\.pt)",
    re.IGNORECASE,
)


@rule(
    "SER010",
    "state-left-out",
    severity="error",
    on="saves",
    when=lambda series: any(len(strand.saves) > 2 for strand in series.strands),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        *before, last = strand.saves
        if len(before) < 2:
            continue
        always = set.intersection(*(set(save.files) for save in before))
        lacking = sorted(name for name in always - last.files.keys() if STATE.search(name) and _is_lost(name, last))
        if lacking:
            yield Problem(
                f"{last.name} lacks {join_truncated(lacking)}, which every save before it has",
                file=last.name,
                hint=f"resume from {before[-1].name}, or wait until the save is written",
            )
        elif last.is_digested and not last.defects and not last.states and all(save.states for save in before):
            yield Problem(
                f"{last.name} has no tensor of the optimizer; every save before it has some"
                f" ({count(len(before[-1].states), 'tensor')} in {before[-1].name})",
                file=last.name,
                hint=f"resume from {before[-1].name}, or wait until the save is written",
            )


def _is_lost(name: str, last: Save) -> bool:
    """Whether a file is missing in a save that was not simply written by fewer ranks: these leave out the last numbers."""
    pattern = re.compile(re.sub(r"\d+", r"(\\d+)", re.escape(name)))
    own = pattern.fullmatch(name)
    same = [match for other in last.files if (match := pattern.fullmatch(other))]
    numbers = tuple(map(int, own.groups())) if own else ()
    return not same or any(tuple(map(int, match.groups())) > numbers for match in same)
