"""Feed-forward or expert matrices do not fit the width that the config declares.

## What it checks
In the common decoder families: `gate_proj` and `up_proj` are `[intermediate_size, hidden_size]` and `down_proj` the
reverse; an expert's are `moe_intermediate_size` wide (Mixtral: `intermediate_size`). Packed (quantized) tensors are
left out.

## Why it matters
transformers and vLLM stop with a size mismatch; where a wrong width is a divisor, tensor-parallel loaders read a
slice and go on.

## How to fix
Take the config of this model; check tensor-parallel merges, and transposed exports of experts.

## When it can be wrong
A model whose layers were pruned each to its own width, by code of its own under a known `model_type`, fires;
`--ignore CFG015`. Shared experts and experts fused into one tensor are not looked at (MOE006 looks at the latter).
Where width and hidden size are equal, a transposed matrix has the right shape.

## Seen in
ggml-org/llama.cpp#20200, modal-projects/training-gym#100, huggingface/transformers#47031
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.families import expert_shapes, family_of, mlp_shapes
from ckptcheck.phrase import ranges, shape


@rule(
    "CFG015",
    "mlp-shape-mismatch",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.anatomy.stack
    if stack is None or ckpt.config is None:
        return
    odd: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for name, expected in mlp_shapes(ckpt.config).items():
        for layer, names in ckpt.anatomy.layers.items():
            tensor = ckpt.tensors[stack.name(layer, name)] if name in names else None
            if tensor is not None and tensor.is_plain and tensor.shape != expected:
                odd.setdefault((name, tensor.shape, expected), []).append(layer)
    shapes = expert_shapes(ckpt.config)
    for layer in ckpt.anatomy.layers:
        for group, parts in stack.groups.get(layer, {}).items():
            if not group.endswith("experts"):
                continue
            for part in shapes.keys() & parts.keys():
                for expert in parts[part]:
                    tensor = ckpt.tensors[stack.name(layer, f"{group}.{expert}.{part}")]
                    if tensor.is_plain and tensor.shape != shapes[part]:
                        odd.setdefault((f"{group}.{expert}.{part}", tensor.shape, shapes[part]), []).append(layer)
    for (name, found, expected), layers in odd.items():
        full = stack.name(layers[0], name)
        transposed = ": it is transposed" if found == expected[::-1] else ""
        yield Problem(
            f"in layers {ranges(layers)} {name} has the shape {shape(found)}; the config needs {shape(expected)}{transposed}",
            file=ckpt.holders[full],
            key=full,
            hint="compare intermediate_size and moe_intermediate_size with the model's own config",
        )
