"""There are more experts than the config declares.

## What it checks
No expert has a number at or beyond the declared count, and no tensor that holds all experts of a layer has more slices.

## Why it matters
The router has one row per declared expert, so it never chooses the others. transformers leaves them out; vLLM and SGLang stop with
an index or shape error.

## How to fix
Correct the count in the config, or export again: an export that numbers experts per rank and per copy adds some.

## When it can be wrong
- An engine that balances load may save copies of busy experts after the real ones, and its own loader drops them again. Use
  `--ignore MOE002` there.
- ERNIE 4.5 VL stores as many experts again for images; twice the count is expected there.
- Experts that compute nothing (`zero_expert_num`) are left out.
- If the config gives a list of numbers, or none, the rule does not apply.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.experts import fused_experts, iter_numbered_experts
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_ranges


@rule(
    "MOE002",
    "surplus-expert",
    severity="error",
    on="layers",
    when=lambda ckpt: isinstance(ckpt.components.num_experts, int) and not ckpt.is_partial,
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    stack, declared = ckpt.components.stack, ckpt.components.num_experts
    if not isinstance(declared, int):
        return
    if ckpt.config is not None and str(ckpt.config.get("model_type")).startswith("ernie4_5_vl_moe"):
        declared *= 2  # as many again for images, numbered after those for text
    for layer, group, members, _ in iter_numbered_experts(ckpt.components):
        if surplus := {expert for expert in members if expert >= declared}:
            yield Problem(
                f"layer {layer} has experts beyond the {declared} that {ckpt.components.experts_source}: {format_ranges(surplus)}",
                file=ckpt.file_of(stack.full_name(layer, group)),
                key=stack.full_name(layer, group),
                hint="correct the count, or export again",
            )
    for name, stored in fused_experts(ckpt.components):
        if stored > declared:
            yield Problem(
                f"it holds {stored} experts, more than the {declared} that {ckpt.components.experts_source}",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="correct the count, or export again",
            )
