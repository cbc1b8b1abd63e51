"""There are more experts than the config declares.

## What it checks
No expert has a number at or beyond the declared count, and no fused tensor holds more.

## Why it matters
The router has one row per declared expert, so the others are never chosen; transformers leaves them out, vLLM and
SGLang stop with an index or a shape error.

## How to fix
Correct the count in the config, or export again: an export that numbers experts per rank and per copy adds some.

## When it can be wrong
An engine that balances load may save copies of busy experts behind the real ones, and a loader of its own drops them
again: `--ignore MOE002` there. Experts that compute nothing (`zero_expert_num`) are left out. Where the config gives
a list of numbers, or none, the rule does not apply.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_experts, numbered_experts
from ckptcheck.phrase import ranges


@rule(
    "MOE002",
    "surplus-expert",
    severity="error",
    when=lambda ckpt: bool(ckpt.anatomy.layers) and isinstance(ckpt.anatomy.experts, int) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack, declared = ckpt.anatomy.stack, ckpt.anatomy.experts
    assert stack is not None
    assert isinstance(declared, int)
    for layer, group, members, _ in numbered_experts(ckpt.anatomy):
        if surplus := {expert for expert in members if expert >= declared}:
            yield Problem(
                f"layer {layer} has experts beyond the {declared} that the config declares: {ranges(surplus)}",
                file=ckpt.holder(stack.name(layer, group)),
                key=stack.name(layer, group),
                hint="correct the count, or export again",
            )
    for name, found in fused_experts(ckpt.anatomy):
        if found > declared:
            yield Problem(
                f"it holds {found} experts, but the config declares {declared}",
                file=ckpt.holders[name],
                key=name,
                hint="correct the count, or export again",
            )
