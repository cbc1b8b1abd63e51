"""Two folders hold a save of the same step, and they differ.

## What it checks
- Where two folders have the same step (``step_10`` and ``step_0010``, or the saves of two folders that were named together), their
  weights are equal.

## Why it matters
- Two jobs wrote into one run, or a run was taken back and repeated. Which one a trainer or an evaluation takes depends on how it
  sorts the names.

## How to fix
- Move those of one run away.

## When it can be wrong
- Never, if the step in the name is the step of training.

## Seen in
strands-labs/robots#3165 (a run that was continued with more steps pads them wider: `100000` beside `0900000`, and readers took
the last name for the newest save), TheLastBen/fast-stable-diffusion#1198 (a resumed run counts its steps from 0 again)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.save_series import SaveSeries


@rule(
    "SER016",
    "doubled-step",
    severity="warning",
    on="saves",
    when=lambda series: any(
        len({save.number for save in strand.saves}) < len(strand.saves) for strand in series.strands
    ),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for strand in series.strands:
        known: dict[int, Save] = {}
        for save in strand.saves:
            first = known.setdefault(save.number, save)
            if first is not save and first.is_digested and save.is_digested and first.weights != save.weights:
                yield Problem(
                    f"{first.address} and {save.address} are both saves of step {save.number}, with other weights",
                    file=save.name,
                    hint="they are of two runs, or of a run that was repeated: keep them apart",
                )
