"""A layer's attention or feed-forward block lacks one of its matrices.

## What it checks
In the common decoder families: a layer that has one of `q_proj`, `k_proj`, `v_proj`, `o_proj` has all four, and one that has
`up_proj` or `down_proj` has both, and `gate_proj` where the family has one. Quantized weights count under their packed names.
The rule does not compare layers with each other, so it finds a tensor that every layer lacks; CFG005 reports layers that
differ.

## Why it matters
transformers initializes the missing matrices with random numbers. A pattern in an export script that matches nothing drops
the same tensor from all layers, and every layer looks like its siblings.

## How to fix
Export again, and check which name the exporter does not map.

## When it can be wrong
The model's own code under a known `model_type` may omit a matrix or store q, k and v fused; transformers' class of that
family loads neither. Use `--ignore CFG020` if only that code reads the model. The rule does not find a block that is missing
completely in every layer, because a layer may have no attention by design. Unknown families are not checked.

## Seen in
No public report of one tensor in all layers: paiml/entrenar#258 lost all biases so.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import QKVO, family_of
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.text.formatting import format_layers


@rule(
    "CFG020",
    "torn-component",
    severity="error",
    when=lambda ckpt: family_of(ckpt.config) is not None and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    family, stack = family_of(ckpt.config), ckpt.components.stack
    if family is None or stack is None:
        return
    attention = [f"self_attn.{part}.weight" for part in QKVO]
    dense = [f"mlp.{part}_proj.weight" for part in (("gate", "up", "down") if family.gate else ("up", "down"))]
    layers = {layer: unquantized_names(names) for layer, names in ckpt.components.layers.items()}
    for component in (attention, dense):
        if any("mlp.gate_up_proj.weight" in names for names in layers.values()) and component is dense:
            continue  # fused (GLM)
        for name in component:
            lacking = [layer for layer, names in layers.items() if name not in names and names.intersection(component)]
            if lacking and not any(name in names for names in layers.values()):
                yield Problem(
                    f"{stack.prefix}: {format_layers(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} "
                    f"{name}, although they have the rest of the block",
                    file=ckpt.file_of(stack.full_name(lacking[0])),
                    key=stack.full_name(lacking[0], name),
                    hint="export again; until then transformers initializes it with random numbers",
                )
