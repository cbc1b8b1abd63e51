"""A layer lacks experts.

## What it checks
Every layer with experts has all of them, 0 to `num_experts` - 1 of the saved arguments; without arguments, as many as the
layer that has the most.

## Why it matters
A save that writes only the experts of some ranks is not noticed by the job that wrote it. The router still chooses the
missing experts, and whoever loads them computes with what was allocated.

## How to fix
Save again, every expert-parallel rank under numbers of its own.

## When it can be wrong
A model whose experts were pruned layer by layer, saved under its old arguments. `--ignore MEG017` silences it.

## Seen in
verl-project/verl#2086, KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import promised
from ckptcheck.phrase import count, ranges


@rule("MEG017", "missing-expert", severity="error", on="megatron", when=lambda run: bool(run.structure.experts))
def check(run: Megatron) -> Iterator[Problem]:
    most = 1 + max((expert for experts in run.structure.experts.values() for expert in experts), default=-1)
    due = promised(run.args, "num_experts") or most
    lacking = {layer: set(range(due)) - experts for layer, experts in run.structure.experts.items()}
    lacking = {layer: missing for layer, missing in lacking.items() if missing}
    if lacking:
        layer, missing = min(lacking.items())
        more = (
            f", and {count(len(lacking) - 1, 'more layer lacks', 'more layers lack')} some" if len(lacking) > 1 else ""
        )
        yield Problem(
            f"layer {layer} lacks {count(len(missing), 'expert')} of {due} ({ranges(missing)}){more}",
            file=run.place,
            hint="save again, every expert-parallel rank under numbers of its own",
        )
