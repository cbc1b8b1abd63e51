"""Two layers are the same, byte for byte.

## What it checks
No two layers of the language model have the same bytes in all their matrices; of numbered experts the first of each layer
counts.

## Why it matters
Pipeline-parallel conversions that forget the stage's offset write layers 0 and 1 again where 2 and 3 belong: the count is
right, the names are right, and half of the model is gone.

## How to fix
Convert again with the offset of each pipeline stage.

## When it can be wrong
Models that were made deeper by repeating layers, and never trained after, have equal layers by design (SOLAR's method before
its training, mergekit's passthrough, frankenmerges), and so have models that share weights between layers (ALBERT's method)
and were stored layer by layer. Layers that are equal except for a norm count as equal; of layers equal in some matrices only
VAL014 speaks. `--ignore VAL008`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#24381, NVIDIA/Megatron-LM#1583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.duplicates import equal_layers, layers, matched


@rule("VAL008", "duplicate-layer", severity="warning", on="values", when=lambda ckpt: len(ckpt.anatomy.layers) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.anatomy.stack
    assert stack is not None
    found = equal_layers(ckpt)
    said = [
        f"{layers(copies)} {'are' if len(copies) > 1 else 'is'} {layers(originals)} again"
        for copies, originals in matched(found.items())
    ]
    if said:
        more = f", and so on for {len(said) - 3} more" if len(said) > 3 else ""
        yield Problem(
            f"{stack.prefix}: {', '.join(said[:3])}{more}, byte for byte",
            file=ckpt.holder(stack.name(min(found))),
            key=stack.name(min(found)),
            hint="convert again, with the offset of each pipeline stage",
        )
    ckpt.require_values()
