"""Some layers store experts one by one, others fused.

## What it checks
All layers with experts use one layout: a tensor per expert (`experts.0.up_proj.weight`) or one for all
(`experts.gate_up_proj`).

## Why it matters
Loaders decide once for the model: those for one layout leave the layers of the other uninitialised or stop.
transformers saves what it loaded fused as single experts, so a merge of two checkpoints mixes them easily.

## How to fix
Convert all layers to the layout that this architecture uses on disk.

## When it can be wrong
A loader of your own may take both, for example where a recipe quantizes some layers expert by expert and leaves the
others fused; then `--ignore MOE003`. Fused tensors are known by the names `gate_up_proj` and `down_proj` and by three
dimensions: experts fused in another way are not seen.

## Seen in
NVIDIA-NeMo/Automodel#2595
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_names, numbered_experts
from ckptcheck.phrase import ranges


@rule(
    "MOE003",
    "mixed-expert-layout",
    severity="error",
    when=lambda ckpt: bool(ckpt.anatomy.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    anatomy = ckpt.anatomy
    assert anatomy.stack is not None
    single = {layer for layer, *_ in numbered_experts(anatomy)}
    fused = dict(fused_names(anatomy))
    if single and fused:
        first = anatomy.stack.name(min(fused), fused[min(fused)])
        yield Problem(
            f"layers {ranges(single)} store their experts one by one, layers {ranges(fused)} fused into one tensor; "
            "loaders expect one layout",
            file=ckpt.holders[first],
            key=first,
            hint="convert all layers to one layout",
        )
