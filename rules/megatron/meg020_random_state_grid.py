"""The random states were saved over another grid of ranks.

## What it checks
`rng_state` is saved over the grid of pipeline × tensor ranks that the arguments give.

## Why it matters
Arguments and data come from different saves, or the file with the arguments was copied from another run. Megatron stops if it
cannot find the states, unless it runs with `--no-load-rng`.

## How to fix
Use common.pt and the data of the same save.

## When it can be wrong
A trainer may shard the states in another way. `--ignore MEG020` silences it.

## Seen in
Seen in checkpoints put together from two saves
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.structure import OBJECT, positive_argument
from ckptcheck.checkpoint.megatron.views import DcpCheckpoint


@rule(
    "MEG020",
    "random-state-grid",
    severity="warning",
    on="dcp",
    when=lambda run: bool(run.args),
)
def check(run: DcpCheckpoint) -> Iterator[Problem]:
    sizes = ("pipeline_model_parallel_size", "tensor_model_parallel_size")
    expected = ".".join(str(positive_argument(run.args, size)) for size in sizes)
    grids = {match[3] for key in run.contents.objects if (match := OBJECT.match(key)) and match[1] == "rng_state"}
    for grid in sorted(grids):
        if grid.count(".") == 1 and grid != expected and "None" not in expected:
            yield Problem(
                f"the random states were saved over a grid of {grid.replace('.', ' × ')} ranks (pipeline × tensor), "
                f"but the arguments say {expected.replace('.', ' × ')}",
                file=run.file(".metadata"),
                key="rng_state",
                hint="use common.pt and the data of the same save",
            )
