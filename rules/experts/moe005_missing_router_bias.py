"""The config declares a correction bias for routers that have none.

## What it checks
With `topk_method: noaux_tc` every layer that has a router (`mlp.gate.weight`) has its `e_score_correction_bias`.

## Why it matters
transformers starts the bias at zero; vLLM and SGLang use whatever the memory held. The model then chooses experts without the
balance that training relied on. Bridges that do not map Megatron's `expert_bias` drop it.

## How to fix
Export again with a bridge that maps `mlp.router.expert_bias` to it.

## When it can be wrong
- A model that was trained without the bias, as if it were zero, and keeps `noaux_tc` in its config, loses nothing in transformers.
  vLLM and SGLang still read uninitialised memory: store zeros there.
- The rule looks only at routers called `mlp.gate`, and knows only `noaux_tc` as a method that needs a bias.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#4657, NVIDIA-NeMo/Megatron-Bridge#4199 (Kimi-K2)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.views import LayeredCheckpoint
from ckptcheck.text.formatting import format_layers


@rule(
    "MOE005",
    "missing-router-bias",
    severity="error",
    on="layers",
    when=lambda ckpt: ckpt.config is not None and ckpt.config.get("topk_method") == "noaux_tc" and not ckpt.is_partial,
)
def check(ckpt: LayeredCheckpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.components.stack
    layers = [
        layer
        for layer, names in stack.layers.items()
        if "mlp.gate.weight" in names and not any(name.endswith("e_score_correction_bias") for name in names)
    ]
    if layers:
        yield Problem(
            f"topk_method is noaux_tc, but the routers of {format_layers(layers)} have no e_score_correction_bias; "
            "engines choose experts without it",
            file=ckpt.file_of(stack.full_name(layers[0])),
            key=stack.full_name(layers[0], "mlp.gate.e_score_correction_bias"),
            hint="export again with a bridge that maps the router's expert_bias",
        )
