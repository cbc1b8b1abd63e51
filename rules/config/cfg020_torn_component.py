"""A layer's attention or feed-forward block lacks one of its matrices.

## What it checks
In the common decoder families: a layer that has one of `q_proj`, `k_proj`, `v_proj`, `o_proj` has all four, and one that has
`up_proj` or `down_proj` has both, and `gate_proj` where the family has one. Quantized weights count under their packed
names. Layers are not compared with each other here, so a tensor that is lost in every layer is seen; layers that differ
are CFG005's.

## Why it matters
transformers starts the missing matrices from random numbers. A pattern in an export script that matches nothing drops the
same tensor from all layers, and then every layer looks like its siblings.

## How to fix
Export again; look at which name the exporter does not map.

## When it can be wrong
Code of the model's own under a known `model_type` may do without a matrix or store q, k and v fused; transformers'
class of that family loads neither. `--ignore CFG020` where that code is all that reads it. A block that is lost
whole, in every layer, is not seen: a layer may be without attention by design. In families that are not known nothing
is said.

## Seen in
No public report of one tensor in all layers: paiml/entrenar#258 lost all biases so.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.families import QKVO, family_of
from ckptcheck.checkpoint.packing import fold
from ckptcheck.phrase import ranges


@rule(
    "CFG020",
    "torn-component",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    family, stack = family_of(ckpt.config), ckpt.anatomy.stack
    if family is None or stack is None:
        return
    attention = [f"self_attn.{part}.weight" for part in QKVO]
    dense = [f"mlp.{part}_proj.weight" for part in (("gate", "up", "down") if family.gate else ("up", "down"))]
    layers = {layer: fold(names) for layer, names in ckpt.anatomy.layers.items()}
    for component in (attention, dense):
        if any("mlp.gate_up_proj.weight" in names for names in layers.values()) and component is dense:
            continue  # fused (GLM)
        for name in component:
            lacking = [layer for layer, names in layers.items() if name not in names and names.intersection(component)]
            if lacking and not any(name in names for names in layers.values()):
                yield Problem(
                    f"{stack.prefix}: layers {ranges(lacking)} lack {name}, although they have the rest of the block",
                    file=ckpt.holder(stack.name(lacking[0])),
                    key=stack.name(lacking[0], name),
                    hint="export again; until then transformers starts it from random numbers",
                )
