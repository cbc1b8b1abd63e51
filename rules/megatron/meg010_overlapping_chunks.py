"""Elements of a tensor are held by several chunks.

## What it checks
No two chunks of a tensor hold the same element.

## Why it matters
Which of them a loader takes depends on the order in which it reads: the tensor is right on some ranks and wrong on others.
It happens where ranks believed in different grids, or two tables of contents were merged.

## How to fix
Save again; compare with an earlier iteration.

## When it can be wrong
A writer that stores replicas on purpose, each with the same bytes, does no harm; Megatron and torch.distributed.checkpoint
store one. `--ignore MEG010` silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1716 (every expert rank under the same numbers)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.phrase import count, few, shape


@rule("MEG010", "overlapping-chunks", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.covers.items():
        if cover.doubled:
            yield Problem(
                f"{count(cover.doubled, 'element is', 'elements are')} held by several chunks, "
                f"the first at {shape(cover.doubled_at)}",
                file=run.file(".metadata"),
                key=key,
                hint="save again, every rank with its own place in the grid",
            )
    if unseen := [key for key, cover in run.covers.items() if cover.unexamined and is_weight(key)]:
        raise Skip(f"too many chunks to look for overlaps: {few(unseen)}")
