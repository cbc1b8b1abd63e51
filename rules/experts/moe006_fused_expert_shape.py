"""A tensor of fused experts has other dimensions than the config declares.

## What it checks
- `experts.gate_up_proj` has the dimensions number of experts, twice the expert width, and `hidden_size`.
- `experts.down_proj` has the dimensions number of experts, expert width, and `hidden_size`.

The last two may stand in the order of the architecture or be transposed. Packed (quantized) tensors are left out.

## Why it matters
transformers, vLLM and SGLang stop with a size mismatch, or read the bytes in a wrong shape if the product of the sizes is the same.

## How to fix
Export again, and compare `moe_intermediate_size` and `hidden_size` with the model's own config.

## When it can be wrong
If twice the width equals `hidden_size`, a transposed tensor has the same shape, and the header does not show it.

## Seen in
ggml-org/llama.cpp#20200, huggingface/transformers#47031, modal-projects/training-gym#100
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.config import HIDDEN
from ckptcheck.checkpoint.experts import fused_names
from ckptcheck.checkpoint.views import ConfiguredCheckpoint
from ckptcheck.text.formatting import format_shape

LATENT = ("moe_latent_size", "moe_hidden_size")
"""What the experts read, where a projection stands before them."""
WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")


@rule(
    "MOE006",
    "fused-expert-shape",
    severity="error",
    on="config",
    when=lambda ckpt: bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: ConfiguredCheckpoint) -> Iterator[Problem]:
    stack = ckpt.components.stack
    hidden, width = ckpt.config.integer(*LATENT, *HIDDEN), ckpt.config.integer(*WIDTH)
    if not hidden or not width or stack is None:
        return
    for layer, name in fused_names(ckpt.components):
        tensor = ckpt.tensors[stack.full_name(layer, name)]
        rows = 2 * width if name.endswith(("gate_up_proj", "gate_up_proj.weight")) else width
        if tensor.is_plain and len(tensor.shape) == 3 and sorted(tensor.shape[1:]) != sorted((rows, hidden)):
            yield Problem(
                f"its shape is {format_shape(tensor.shape)}; the config needs an expert of {rows} × {hidden}",
                file=ckpt.tensor_to_file[stack.full_name(layer, name)],
                key=stack.full_name(layer, name),
                hint="compare moe_intermediate_size and hidden_size with the model's own config",
            )
