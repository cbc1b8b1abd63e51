"""Attention projections do not fit the heads that the config declares.

## What it checks
In the common decoder families: `q_proj` and `o_proj` have `num_attention_heads × head_dim` rows or columns, `k_proj`
and `v_proj` have `num_key_value_heads × head_dim`, all the others `hidden_size`. `head_dim` is `hidden_size / heads`
where the config does not give it. Packed (quantized) tensors are left out.

## Why it matters
transformers and vLLM stop with a size mismatch, or a tensor-parallel loader reads the wrong slices.

## How to fix
Take the config of this model; check tensor-parallel merges, which leave a multiple or a fraction of the rows.

## When it can be wrong
A model whose layers were pruned each to its own number of heads, by code of its own under a known `model_type`,
fires. `--ignore CFG014` there. Only products are compared: 16 heads of 64 need the shapes of 8 heads of 128, so such
a slip in the config passes, and so do projections that are fused or packed.

## Seen in
charlie12345/ROCmFPX#49, verl-project/verl#7612
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.families import attention_shapes, family_of
from ckptcheck.phrase import ranges, shape


@rule(
    "CFG014",
    "attention-shape-mismatch",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.anatomy.stack
    if stack is None or ckpt.config is None:
        return
    heads, groups = ckpt.config.integer("num_attention_heads"), ckpt.config.integer("num_key_value_heads")
    if heads and groups and heads % groups:
        yield Problem(
            f"{heads} attention heads cannot be shared by {groups} key-value heads",
            file=ckpt.config.file,
            key=ckpt.config.key("num_key_value_heads"),
            hint="take the config of this model",
        )
    for name, expected in attention_shapes(ckpt.config).items():
        odd: dict[tuple[int, ...], list[int]] = {}
        for layer, names in ckpt.anatomy.layers.items():
            tensor = ckpt.tensors[stack.name(layer, name)] if name in names else None
            if tensor is not None and tensor.is_plain and tensor.shape != expected:
                odd.setdefault(tensor.shape, []).append(layer)
        for found, layers in odd.items():
            full = stack.name(layers[0], name)
            yield Problem(
                f"in layers {ranges(layers)} {name} has the shape {shape(found)}; the heads in the config need {shape(expected)}",
                file=ckpt.holders[full],
                key=full,
                hint="compare num_attention_heads, num_key_value_heads and head_dim with the model's own config",
            )
