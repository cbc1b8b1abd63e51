"""An expert is missing.

## What it checks
- Every layer with numbered experts has as many as the config declares (`n_routed_experts`, `num_experts`, `num_local_experts`, …),
  numbered from 0 without a gap. If the config does not say how many, the layers are compared with each other.
- Every weight that some experts of a layer have, all of them have.
- A tensor that holds all experts of a layer has as many slices as the config declares.

## Why it matters
transformers starts missing experts from random numbers; vLLM and SGLang leave uninitialised memory. Only the tokens that are
routed there show it. Expert-parallel saves that write one rank's share, and exporters that number each rank's experts from 0,
produce exactly this.

## How to fix
Save or export again from all expert-parallel ranks.

## When it can be wrong
- Experts that were pruned layer by layer leave different numbers. With one number in the config the rule reports every layer that
  has fewer. If the model's own code loads that: `--ignore MOE001`.
- If the config gives no number and every layer lost the same last experts, nothing shows it.
- Shared experts and layers of multi-token prediction are not counted.

## Seen in
verl-project/verl#2086, KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716,
alibaba/Pai-Megatron-Patch#633
"""

from collections.abc import Iterator
from itertools import islice

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.experts import fused_experts, iter_numbered_experts
from ckptcheck.checkpoint.packing import unquantized_name
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_ranges, join_truncated

MAX_LISTED = 1000
"""The most missing experts that a message lists."""


@rule("MOE001", "missing-expert", severity="error", on="layers", when=lambda ckpt: not ckpt.is_partial)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.components.stack
    declared = ckpt.components.num_experts
    groups = list(iter_numbered_experts(ckpt.components))
    most = max((max(members) + 1 for *_, members, _ in groups), default=0)
    for layer, group, members, parts in groups:
        expected = declared if isinstance(declared, int) else most if declared is None else max(members) + 1
        # A hostile count must not become a set of that size.
        if len(members) < expected:
            missing = islice((expert for expert in range(expected) if expert not in members), MAX_LISTED)
            source = ckpt.components.experts_source if isinstance(declared, int) else "other layers have"
            yield Problem(
                f"layer {layer} has {len(members)} of the {expected} experts that {source}; missing: {format_ranges(missing)}",
                file=ckpt.file_of(stack.full_name(layer, group)),
                key=stack.full_name(layer, group),
                hint="save again from all expert-parallel ranks",
            )
        missing_weights: dict[frozenset[int], list[str]] = {}
        whole: dict[str, set[int]] = {}
        for part, experts_with in parts.items():
            if (core := unquantized_name(part)) is not None:
                whole.setdefault(core, set()).update(experts_with)
        for part, experts_with in whole.items():
            if part.endswith("weight") and experts_with != members:
                missing_weights.setdefault(frozenset(members - experts_with), []).append(part)
        for experts, names in missing_weights.items():
            yield Problem(
                f"in layer {layer} {'expert' if len(experts) == 1 else 'experts'} {format_ranges(experts)} "
                f"{'lacks' if len(experts) == 1 else 'lack'} {join_truncated(names)}, which the others have",
                file=ckpt.file_of(stack.full_name(layer, group)),
                key=stack.full_name(layer, f"{group}.{min(experts)}.{min(names)}"),
                hint="save again from all expert-parallel ranks",
            )
    if isinstance(declared, int):
        for name, stored in fused_experts(ckpt.components):
            if stored < declared:
                yield Problem(
                    f"it holds {stored} of the {declared} experts that {ckpt.components.experts_source}",
                    file=ckpt.tensor_to_file[name],
                    key=name,
                    hint="save again from all expert-parallel ranks",
                )
