"""A layer of the model is missing.

## What it checks
- The decoder has every layer from 0 to `num_layers` - 1 of the saved arguments. Without arguments, no number below the
  highest is missing.
- The same holds for the layers of multi-token prediction (`mtp_num_layers`).

## Why it matters
An uneven pipeline split drops layers while the model is built. The checkpoint is complete for that run but incomplete
for every other reader: a converter exports a shallower model, and a loader with another split leaves layers
uninitialized.

## How to fix
Save again with a pipeline split that holds all layers, and compare their number with the arguments.

## When it can be wrong
A model may be pruned on purpose and saved under its old arguments. `--ignore MEG016` silences it.

## Seen in
NVIDIA/Megatron-LM#1304 (30 layers, 28 built and saved), NVIDIA/Megatron-LM#1583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.structure import positive_argument
from ckptcheck.text.formatting import count, format_ranges


@rule("MEG016", "missing-layer", severity="error", on="megatron", when=lambda run: bool(run.structure.layers))
def check(run: Megatron) -> Iterator[Problem]:
    for name, numbers, key in (
        ("layer", set(run.structure.layers), "num_layers"),
        ("layer of multi-token prediction", run.structure.mtp, "mtp_num_layers"),
    ):
        expected = positive_argument(run.args, key)
        missing = set(range(expected if expected is not None else max(numbers, default=-1) + 1)) - numbers
        if missing:
            argument = f": {key} is {expected}" if expected is not None else ""
            yield Problem(
                f"{count(len(missing), name)} of the model {'is' if len(missing) == 1 else 'are'} missing "
                f"({format_ranges(missing)}){argument}",
                file=run.finding_file,
                hint="save again with a pipeline split that holds all layers",
            )
