"""The states of random generators are those of another grid of ranks.

## What it checks
`rng_state` is saved over a grid of pipeline × tensor ranks; it is the one that the arguments give.

## Why it matters
Arguments and data come from different saves, or the file that holds the arguments was copied from another run. Where the
states cannot be found, Megatron stops unless told `--no-load-rng`.

## How to fix
Take common.pt and the data from the same save.

## When it can be wrong
Trainers that shard the states in another way. `--ignore MEG020` silences it.

## Seen in
Seen in checkpoints put together from two saves
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import OBJECT, promised


@rule(
    "MEG020",
    "random-state-grid",
    severity="warning",
    on="megatron",
    when=lambda run: run.form == "torch_dist" and run.contents is not None and bool(run.args),
)
def check(run: Megatron) -> Iterator[Problem]:
    assert run.contents is not None
    due = f"{promised(run.args, 'pipeline_model_parallel_size')}.{promised(run.args, 'tensor_model_parallel_size')}"
    grids = {match[3] for key in run.contents.objects if (match := OBJECT.match(key)) and match[1] == "rng_state"}
    for grid in sorted(grids):
        if grid.count(".") == 1 and grid != due and "None" not in due:
            yield Problem(
                f"the states of random generators are saved over a grid of {grid.replace('.', ' × ')} ranks (pipeline × tensor), "
                f"and the arguments say {due.replace('.', ' × ')}",
                file=run.file(".metadata"),
                key="rng_state",
                hint="take common.pt and the data from the same save",
            )
