"""A tensor of fused experts has dimensions that the config does not give.

## What it checks
`experts.gate_up_proj` is made of the number of experts, twice the expert width and `hidden_size`; `experts.down_proj`
of the number of experts, the expert width and `hidden_size`, in the order of the architecture or its transpose.
Packed (quantized) tensors are left out.

## Why it matters
transformers, vLLM and SGLang stop with a size mismatch, or reinterpret the bytes where the sizes happen to multiply
alike.

## How to fix
Export again; compare `moe_intermediate_size` and `hidden_size` with the model's own config.

## When it can be wrong
Where twice the width equals `hidden_size` a transposed tensor has the same shape, and nobody can tell from the
header.

## Seen in
ggml-org/llama.cpp#20200, huggingface/transformers#47031, modal-projects/training-gym#100
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import HIDDEN
from ckptcheck.checkpoint.experts import fused_names
from ckptcheck.phrase import shape

WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")


@rule(
    "MOE006",
    "fused-expert-shape",
    severity="error",
    when=lambda ckpt: ckpt.config is not None and bool(ckpt.anatomy.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    assert ckpt.config is not None
    stack = ckpt.anatomy.stack
    assert stack is not None
    hidden, width = ckpt.config.integer(*HIDDEN), ckpt.config.integer(*WIDTH)
    if not hidden or not width:
        return
    for layer, name in fused_names(ckpt.anatomy):
        tensor = ckpt.tensors[stack.name(layer, name)]
        rows = 2 * width if name.endswith(("gate_up_proj", "gate_up_proj.weight")) else width
        if tensor.is_plain and len(tensor.shape) == 3 and sorted(tensor.shape[1:]) != sorted((rows, hidden)):
            yield Problem(
                f"its shape is {shape(tensor.shape)}; the config needs an expert of {rows} × {hidden}",
                file=ckpt.holders[stack.name(layer, name)],
                key=stack.name(layer, name),
                hint="compare moe_intermediate_size and hidden_size with the model's own config",
            )
