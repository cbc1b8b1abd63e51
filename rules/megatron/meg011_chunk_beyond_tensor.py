"""A chunk extends beyond its tensor.

## What it checks
Every chunk lies within its tensor.

## Why it matters
`.metadata` contradicts itself: the size and the chunks come from different models or grids. Loaders fail, or write into
another position.

## How to fix
Save again, and compare with an earlier iteration.

## When it can be wrong
It cannot: no grid has such a chunk. `--ignore MEG011` silences it.

## Seen in
Faults injected into real checkpoints of megatron-core 0.16.1
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.text.formatting import format_shape


@rule("MEG011", "chunk-beyond-tensor", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.beyond is not None:
            chunk, whole = cover.beyond, run.tensors[key].shape
            yield Problem(
                f"a chunk at {format_shape(chunk.offsets)} of {format_shape(chunk.sizes)} extends beyond the "
                f"tensor, which is {format_shape(whole)}",
                file=run.file(".metadata"),
                key=key,
                hint="save again: sizes and chunks come from different models",
            )
