"""A save holds the optimizer's moments of an earlier save.

## What it checks
- No two saves of a run at different steps hold the same moments, bit for bit, where their weights differ. Moments that are zero
  altogether say nothing.

## Why it matters
- Adam's moments change with every step, also without a gradient. Equal moments are those of an earlier step: the trainer resumes
  with new weights and an old direction and scale for each of them, and nothing reports it.

## How to fix
- Switch off asynchronous saving or the offloading of the optimizer during a save, and save again.

## When it can be wrong
- The weights were replaced between two saves without training, by a merge or an average: `--ignore SER002`.

## Seen in
NVIDIA-NeMo/RL#4183 (moments of an earlier step in asynchronous saves)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save import Save, digest_records
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import count


@rule(
    "SER002",
    "repeated-moments",
    severity="error",
    on="saves",
    when=lambda series: any(save.moments for save in series.saves),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    series.require_intervals()
    for strand in series.strands:
        earlier: dict[str, Save] = {}
        for save in strand.digested:
            moments = save.moments
            if all(record.zero for record in moments.values()):
                continue
            first = earlier.setdefault(digest_records(moments), save)
            if first is not save and digest_records(first.weights) != digest_records(save.weights):
                yield Problem(
                    f"{save.name} holds the moments of {first.name}, bit for bit ({count(len(moments), 'tensor')}), although"
                    " the weights moved",
                    file=save.name,
                    hint=f"do not resume from {save.name}; save again without asynchronous saving",
                )
