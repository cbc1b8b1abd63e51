"""No chunk holds some elements of a tensor.

## What it checks
The chunks of every tensor of the model cover it without a gap.

## Why it matters
Megatron and torch.distributed.checkpoint load such a checkpoint without an error and leave these elements uninitialized:
random, or from the previous step. It happens if a rank did not save, or if a tool merged two tables of contents.

## How to fix
Save again with all ranks, or use an earlier iteration.

## When it can be wrong
MEG021 checks optimizer states, because some formats pad them. `--ignore MEG009` silences it.

## Seen in
verl-project/verl#2086 and KempnerInstitute/KempnerForge#202 (experts of one rank only); faults injected into real
checkpoints
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.text.formatting import count, format_shape, join_truncated


@rule("MEG009", "tensor-gap", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.tiling_gaps.items():
        if cover.missing and is_weight(key):
            whole = prod(run.tensors[key].shape)
            yield Problem(
                f"no chunk holds {cover.missing:,} of {count(whole, 'element')}, the first at "
                f"{format_shape(cover.missing_at)}: "
                "loaders silently leave them uninitialized",
                file=run.file(".metadata"),
                key=key,
                hint="save again with all ranks, or use an earlier iteration",
            )
    if unexamined := [key for key, cover in run.tiling_gaps.items() if cover.unexamined and is_weight(key)]:
        raise Skip(f"too many chunks to look for gaps: {join_truncated(unexamined)}")
