"""An expert is missing.

## What it checks
In every layer with numbered experts there are as many as the config declares (`n_routed_experts`, `num_experts`,
`num_local_experts`, …), numbered from 0 without a gap, and every weight that some of them have, all of them have.
Where the config does not say, the layers are compared with each other. Experts fused into one tensor are counted by
its first dimension.

## Why it matters
transformers starts missing experts from random numbers, vLLM and SGLang leave uninitialised memory. Only the tokens
that are routed there show it. Expert-parallel saves that write one rank's share, and exporters that number each
rank's experts from 0, produce exactly this.

## How to fix
Save or export again from all expert-parallel ranks.

## When it can be wrong
Experts that were pruned layer by layer leave different numbers, and with one number in the config the rule fires for
every layer that has fewer. Code of the model's own may load that: `--ignore MOE001`. Where the config gives no number
and every layer lost the same last experts, nothing shows it. Shared experts and layers of multi-token prediction are
not counted.

## Seen in
verl-project/verl#2086, KempnerInstitute/KempnerForge#202, NVIDIA-NeMo/Megatron-Bridge#1716,
alibaba/Pai-Megatron-Patch#633
"""

from collections.abc import Iterator
from itertools import islice

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_experts, numbered_experts
from ckptcheck.checkpoint.packing import folded
from ckptcheck.phrase import few, ranges

MOST = 1000
"""Missing experts that are named; the numbers in the message tell the rest."""


@rule("MOE001", "missing-expert", severity="error", when=lambda ckpt: bool(ckpt.anatomy.layers) and not ckpt.is_partial)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.anatomy.stack
    assert stack is not None
    declared = ckpt.anatomy.experts
    groups = list(numbered_experts(ckpt.anatomy))
    most = max((max(members) + 1 for *_, members, _ in groups), default=0)
    for layer, group, members, parts in groups:
        expected = declared if isinstance(declared, int) else most if declared is None else max(members) + 1
        if len(members) < expected:  # a hostile count must not become a set of that size
            missing = islice((expert for expert in range(expected) if expert not in members), MOST)
            source = "the config declares" if isinstance(declared, int) else "other layers have"
            yield Problem(
                f"layer {layer} has {len(members)} of the {expected} experts that {source}; missing: {ranges(missing)}",
                file=ckpt.holder(stack.name(layer, group)),
                key=stack.name(layer, group),
                hint="save again from all expert-parallel ranks",
            )
        lacking: dict[frozenset[int], list[str]] = {}
        whole: dict[str, set[int]] = {}
        for part, having in parts.items():
            if (core := folded(part)) is not None:
                whole.setdefault(core, set()).update(having)
        for part, having in whole.items():
            if part.endswith("weight") and having != members:
                lacking.setdefault(frozenset(members - having), []).append(part)
        for experts, names in lacking.items():
            yield Problem(
                f"in layer {layer} {'expert' if len(experts) == 1 else 'experts'} {ranges(experts)} "
                f"{'lacks' if len(experts) == 1 else 'lack'} {few(names)}, which the others have",
                file=ckpt.holder(stack.name(layer, group)),
                key=stack.name(layer, f"{group}.{min(experts)}.{min(names)}"),
                hint="save again from all expert-parallel ranks",
            )
    if isinstance(declared, int):
        for name, found in fused_experts(ckpt.anatomy):
            if found < declared:
                yield Problem(
                    f"it holds {found} experts, but the config declares {declared}",
                    file=ckpt.holders[name],
                    key=name,
                    hint="save again from all expert-parallel ranks",
                )
