"""Ranks that hold the same part of a tensor saved different copies of it.

## What it checks
- Where a mesh replicates the model (HSDP: `DTensor` with `Replicate` on one axis), the files of the ranks that have the same part
  hold the same bytes, of the weights and of the optimizer.

## Why it matters
- Each rank loads its own file on resume. The copies of the model then go on from different weights: they get the same gradients,
  and never come together again. An export takes the first copy, so an evaluation sees a model that half of the ranks did not
  train.

## How to fix
- Resume from the save before. In the job, look for a broadcast or an all-reduce that leaves out some ranks, or a step that
  was skipped on some of them (a gradient that was not finite).

## When it can be wrong
- Never for weights of one model. Runs that train copies apart on purpose (DiLoCo) do not save them as one replicated tensor.

## Seen in
pytorch/pytorch#145978 (under HSDP, what was loaded was not what had been saved)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.text.formatting import join_truncated


@rule(
    "SER017",
    "unlike-copies",
    severity="error",
    on="saves",
    when=lambda series: any(save.is_digested for save in series.saves),
)
def check(series: SaveSeries) -> Iterator[Problem]:
    for save in series.saves:
        for unlike in save.unlike_copies:
            yield Problem(
                f"{save.name}: {unlike.file} holds other values than {unlike.of} in the same part of"
                f" {join_truncated(list(unlike.tensors))}",
                file=save.name,
                names=unlike.tensors,
                hint="each rank resumes with its own copy: take the save before, and look in the job for what only some ranks did",
            )
