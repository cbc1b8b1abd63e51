"""Feed-forward or expert matrices do not have the width that the config declares.

## What it checks
In the common decoder families: `gate_proj` and `up_proj` are `[intermediate_size, hidden_size]` and `down_proj` the reverse;
an expert's are `moe_intermediate_size` wide (Mixtral: `intermediate_size`). Packed tensors are excluded; FP8 and INT8 weights,
with one element a number, are not.

## Why it matters
transformers and vLLM stop with a size mismatch; if a wrong width is a divisor, tensor-parallel loaders read a slice and
continue.

## How to fix
Use the config of this model. Check tensor-parallel merges, and transposed exports of experts.

## When it can be wrong
A model whose own code prunes each layer to another width, under a known `model_type`, fires: use `--ignore CFG015`. Shared
experts and experts fused into one tensor are not checked (MOE006 checks the latter). If width and hidden size are equal, a
transposed matrix has the right shape.

## Seen in
ggml-org/llama.cpp#20200, modal-projects/training-gym#100, huggingface/transformers#47031
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import expert_shapes, family_of, mlp_shapes
from ckptcheck.checkpoint.packing import has_own_shape
from ckptcheck.text.formatting import format_layers, format_shape


@rule(
    "CFG015",
    "mlp-shape-mismatch",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.components.stack
    if stack is None or ckpt.config is None:
        return
    method = ckpt.quantization.method if ckpt.quantization is not None else None
    odd: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for name, expected in mlp_shapes(ckpt.config).items():
        for layer, names in ckpt.components.layers.items():
            tensor = ckpt.tensors[stack.full_name(layer, name)] if name in names else None
            if tensor is not None and has_own_shape(tensor, method) and tensor.shape != expected:
                odd.setdefault((name, tensor.shape, expected), []).append(layer)
    shapes = expert_shapes(ckpt.config)
    for layer in ckpt.components.layers:
        for group, parts in stack.groups.get(layer, {}).items():
            if not group.endswith("experts"):
                continue
            for part in shapes.keys() & parts.keys():
                for expert in parts[part]:
                    tensor = ckpt.tensors[stack.full_name(layer, f"{group}.{expert}.{part}")]
                    if has_own_shape(tensor, method) and tensor.shape != shapes[part]:
                        odd.setdefault((f"{group}.{expert}.{part}", tensor.shape, shapes[part]), []).append(layer)
    for (name, found, expected), layers in odd.items():
        full = stack.full_name(layers[0], name)
        transposed = ": it is transposed" if found == expected[::-1] else ""
        yield Problem(
            f"in {format_layers(layers)} {name} has the shape {format_shape(found)}; the config needs "
            f"{format_shape(expected)}{transposed}",
            file=ckpt.tensor_to_file[full],
            key=full,
            hint="compare intermediate_size and moe_intermediate_size with the model's own config",
        )
