"""A layer of the model is missing.

## What it checks
The decoder has every layer from 0 to `num_layers` - 1 of the saved arguments; without arguments, no number below the
highest is missing. The same for the layers of multi-token prediction (`mtp_num_layers`).

## Why it matters
Pipeline splits that do not come out even drop layers while the model is built, so the checkpoint is whole for that run and
short for everyone else: a converter exports a shallower model, a loader of another split leaves layers as they were
allocated.

## How to fix
Save again with a pipeline split that holds all layers; count them against the arguments.

## When it can be wrong
A model that was pruned on purpose, saved under its old arguments. `--ignore MEG016` silences it.

## Seen in
NVIDIA/Megatron-LM#1304 (30 layers, 28 built and saved), NVIDIA/Megatron-LM#1583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import promised
from ckptcheck.phrase import count, ranges


@rule("MEG016", "missing-layer", severity="error", on="megatron", when=lambda run: bool(run.structure.layers))
def check(run: Megatron) -> Iterator[Problem]:
    for name, numbers, key in (
        ("layer", set(run.structure.layers), "num_layers"),
        ("layer of multi-token prediction", run.structure.mtp, "mtp_num_layers"),
    ):
        due = promised(run.args, key)
        missing = set(range(due if due is not None else max(numbers, default=-1) + 1)) - numbers
        if missing:
            said = f": {key} is {due}" if due is not None else ""
            yield Problem(
                f"{count(len(missing), name)} of the model {'is' if len(missing) == 1 else 'are'} missing "
                f"({ranges(missing)}){said}",
                file=run.place,
                hint="save again with a pipeline split that holds all layers",
            )
