"""A chunk reaches out of its tensor.

## What it checks
Every chunk lies within the tensor it belongs to.

## Why it matters
The table of contents contradicts itself: size and chunks come from different models or grids. Loaders fail, or fill another
place.

## How to fix
Save again; compare with an earlier iteration.

## When it can be wrong
It cannot: no grid has such a chunk. `--ignore MEG011` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.phrase import shape


@rule("MEG011", "chunk-beyond-tensor", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.covers.items():
        if cover.beyond is not None:
            chunk, whole = cover.beyond, run.tensors[key].shape
            yield Problem(
                f"a chunk at {shape(chunk.offsets)} of {shape(chunk.sizes)} reaches out of the tensor, which is {shape(whole)}",
                file=run.file(".metadata"),
                key=key,
                hint="save again: sizes and chunks come from different models",
            )
