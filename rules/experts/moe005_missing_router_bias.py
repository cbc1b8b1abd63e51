"""The router's correction bias is declared, but not there.

## What it checks
With `topk_method: noaux_tc` every layer that has a router (`mlp.gate.weight`) has its `e_score_correction_bias`.

## Why it matters
transformers starts the bias at zero and vLLM and SGLang leave whatever the memory held: the experts are chosen
without the balance that training relied on. Bridges that do not map Megatron's `expert_bias` drop it.

## How to fix
Export again with a bridge that maps `mlp.router.expert_bias` to it.

## When it can be wrong
A model that was trained without the bias, as if it were zero, and keeps `noaux_tc` in its config, loses nothing in
transformers; vLLM and SGLang still read memory that nothing filled. Store zeros there. Routers that are called
otherwise than `mlp.gate` are not looked at, and of the methods only `noaux_tc` is known to need a bias.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#4657, NVIDIA-NeMo/Megatron-Bridge#4199 (Kimi-K2)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.phrase import ranges


@rule(
    "MOE005",
    "missing-router-bias",
    severity="error",
    when=lambda ckpt: (
        ckpt.config is not None
        and ckpt.config.get("topk_method") == "noaux_tc"
        and bool(ckpt.anatomy.layers)
        and not ckpt.is_partial
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.anatomy.stack
    assert stack is not None
    lacking = [
        layer
        for layer, names in stack.layers.items()
        if "mlp.gate.weight" in names and not any(name.endswith("e_score_correction_bias") for name in names)
    ]
    if lacking:
        yield Problem(
            f"topk_method is noaux_tc, but the routers of layers {ranges(lacking)} have no e_score_correction_bias; "
            "engines choose experts without it",
            file=ckpt.holder(stack.name(lacking[0])),
            key=stack.name(lacking[0], "mlp.gate.e_score_correction_bias"),
            hint="export again with a bridge that maps the router's expert_bias",
        )
