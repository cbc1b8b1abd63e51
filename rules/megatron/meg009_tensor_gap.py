"""Elements of a tensor are held by no chunk.

## What it checks
The chunks of every tensor of the model cover it without a gap.

## Why it matters
Megatron and torch.distributed.checkpoint load such a checkpoint without a word and leave the elements as they were
allocated: random, or from the step before. It is what a rank leaves that did not save, or a tool that merged two tables of
contents.

## How to fix
Save again with all ranks, or take an earlier iteration.

## When it can be wrong
Optimizer states are not looked at here (MEG021): some formats pad them. `--ignore MEG009` silences it.

## Seen in
verl-project/verl#2086 and KempnerInstitute/KempnerForge#202 (experts of one rank only); faults injected into real
checkpoints
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.phrase import count, few, shape


@rule("MEG009", "tensor-gap", severity="error", on="megatron", when=lambda run: run.form == "torch_dist")
def check(run: Megatron) -> Iterator[Problem]:
    for key, cover in run.covers.items():
        if cover.missing and is_weight(key):
            whole = prod(run.tensors[key].shape)
            yield Problem(
                f"{cover.missing:,} of {count(whole, 'element')} are held by no chunk, the first at {shape(cover.missing_at)}: "
                "a loader leaves them as they were allocated, silently",
                file=run.file(".metadata"),
                key=key,
                hint="save again with all ranks, or take an earlier iteration",
            )
    if unseen := [key for key, cover in run.covers.items() if cover.unexamined and is_weight(key)]:
        raise Skip(f"too many chunks to look for gaps: {few(unseen)}")
