"""Attention projections do not have the shapes that the config's heads require.

## What it checks
In the common decoder families: `q_proj` and `o_proj` have `num_attention_heads × head_dim` rows or columns, `k_proj` and
`v_proj` have `num_key_value_heads × head_dim`, all the others `hidden_size`. `head_dim` is `hidden_size / heads` where the
config does not give it. Packed tensors are excluded; FP8 and INT8 weights, with one
element a number, are not.

## Why it matters
transformers and vLLM stop with a size mismatch, or a tensor-parallel loader reads the wrong slices.

## How to fix
Use the config of this model. Check tensor-parallel merges, which can leave a multiple or a fraction of the rows.

## When it can be wrong
A model whose own code prunes each layer to another number of heads, under a known `model_type`, fires: use `--ignore CFG014`.
Only products are compared: 16 heads of 64 need the same shapes as 8 heads of 128, so such a mistake in the config passes. So
do fused or packed projections.

## Seen in
charlie12345/ROCmFPX#49, verl-project/verl#7612
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import attention_shapes, family_of
from ckptcheck.checkpoint.packing import has_own_shape
from ckptcheck.text.formatting import format_layers, format_shape


@rule(
    "CFG014",
    "attention-shape-mismatch",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.components.stack
    if stack is None or ckpt.config is None:
        return
    method = ckpt.quantization.method if ckpt.quantization is not None else None
    heads, groups = ckpt.config.number("num_attention_heads"), ckpt.config.number("num_key_value_heads")
    if heads and groups and heads % groups:
        yield Problem(
            f"{heads} attention heads cannot be shared by {groups} key-value heads",
            file=ckpt.config.file,
            key=ckpt.config.key_path("num_key_value_heads"),
            hint="use the config of this model",
        )
    for name, expected in attention_shapes(ckpt.config).items():
        odd: dict[tuple[int, ...], list[int]] = {}
        for layer, names in ckpt.components.layers.items():
            tensor = ckpt.tensors[stack.full_name(layer, name)] if name in names else None
            if tensor is not None and has_own_shape(tensor, method) and tensor.shape != expected:
                odd.setdefault(tensor.shape, []).append(layer)
        for found, layers in odd.items():
            full = stack.full_name(layers[0], name)
            yield Problem(
                f"in {format_layers(layers)} {name} has the shape {format_shape(found)}; the heads in the "
                f"config need {format_shape(expected)}",
                file=ckpt.tensor_to_file[full],
                key=full,
                hint="compare num_attention_heads, num_key_value_heads and head_dim with the model's own config",
            )
