"""A layer lacks experts, or parts of them.

## What it checks
Every layer with experts has all of them, 0 to `num_experts` - 1 of the saved arguments; without arguments, as many as the
layer that has the most. Where the arguments describe a plain GPT, `num_experts` and `moe_layer_freq` also say which layers
have experts, so that it is seen when all of them are gone. Every expert has both of its matrices (`linear_fc1`,
`linear_fc2`), and what most other experts of its layer have.

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
from ckptcheck.checkpoint.megatron.required import FC1, FC2, expert_layers, is_plain, torn_experts
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.structure import promised
from ckptcheck.phrase import count, few, ranges

HINT = "save again, every expert-parallel rank under numbers of its own"


@rule(
    "MEG017",
    "missing-expert",
    severity="error",
    on="megatron",
    when=lambda run: (
        bool(run.structure.experts) or (bool(run.structure.layers) and promised(run.args, "num_experts") is not None)
    ),
)
def check(run: Megatron) -> Iterator[Problem]:
    most = 1 + max((expert for experts in run.structure.experts.values() for expert in experts), default=-1)
    due = promised(run.args, "num_experts") or most
    there = {layer: set[int]() for layer in _bare(run)} | run.structure.experts
    lacking = {layer: missing for layer, experts in there.items() if (missing := set(range(due)) - experts)}
    if lacking:
        layer, missing = min(lacking.items())
        more = (
            f", and {count(len(lacking) - 1, 'more layer lacks', 'more layers lack')} some" if len(lacking) > 1 else ""
        )
        yield Problem(
            f"layer {layer} lacks {count(len(missing), 'expert')} of {due} ({ranges(missing)}){more}",
            file=run.place,
            hint=HINT,
        )
    torn = torn_experts(run.structure)
    if torn:
        layer, parts = min(torn.items())
        experts = set[int]().union(*parts.values())
        more = f", and so it is in {count(len(torn) - 1, 'more layer')}" if len(torn) > 1 else ""
        yield Problem(
            f"{count(len(experts), 'expert')} of layer {layer} ({ranges(experts)}) "
            f"{'lacks' if len(experts) == 1 else 'lack'} {few(parts)}{more}",
            file=run.place,
            hint=HINT,
        )


def _bare(run: Megatron) -> list[int]:
    """Return the layers that should have experts by the arguments, and have neither those nor a dense block."""
    layers = run.structure.layers
    if not is_plain(run.args, layers):
        return []
    return [
        layer
        for layer in sorted(expert_layers(run.args, layers) or ())
        if not layers[layer] & {*FC1, *FC2} and not any(name.startswith("mlp.experts.") for name in layers[layer])
    ]
