"""Several chunks hold the same elements of a tensor.

## What it checks
No two chunks of a tensor hold the same element.

## Why it matters
The loader's reading order decides which chunk wins, so the tensor is right on some ranks and wrong on others. It happens if
ranks assumed different grids, or if two tables of contents were merged.

## How to fix
Save again, and compare with an earlier iteration.

## When it can be wrong
A writer that stores replicas with equal bytes on purpose does no harm; Megatron and torch.distributed.checkpoint store one.
`--ignore MEG010` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1716 (every expert rank under the same numbers)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.text.formatting import count, format_shape, join_truncated


@rule("MEG010", "overlapping-chunks", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.doubled:
            yield Problem(
                f"several chunks hold {count(cover.doubled, 'element')}, the first at {format_shape(cover.doubled_at)}",
                file=run.file(".metadata"),
                key=key,
                hint="save again, with a distinct grid position for every rank",
            )
    if unexamined := [key for key, cover in run.tiling_gaps.items() if cover.unexamined and is_weight(key)]:
        raise Skip(f"too many chunks to look for overlaps: {join_truncated(unexamined)}")
