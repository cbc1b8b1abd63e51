"""Two layers are the same, byte for byte.

## What it checks
No two layers of the language model have the same bytes in all their matrices. Of numbered experts it compares the first of each
layer.

## Why it matters
A pipeline-parallel conversion that forgets the offset of each stage writes layers 0 and 1 again in place of 2 and 3. The count
and the names are right, and half of the model is gone.

## How to fix
Convert again with the offset of each pipeline stage.

## When it can be wrong
- Models that were made deeper by repeating layers and not trained since have equal layers by design (SOLAR's method before its
  training, mergekit's passthrough, frankenmerges). So do models that share weights between layers (ALBERT's method) and store each.
- Layers that differ in a norm only count as equal. VAL014 reports layers that are equal in some matrices only.
- `--ignore VAL008`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#24381, NVIDIA/Megatron-LM#1583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.text.formatting import format_layers
from ckptcheck.values.detectors.duplicate_tensors import find_equal_layers, group_copies


@rule("VAL008", "duplicate-layer", severity="warning", on="values", when=lambda ckpt: len(ckpt.components.layers) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.components.stack
    equal_layers = find_equal_layers(ckpt)
    sentences = [
        f"{format_layers(copies)} {'repeat' if len(copies) > 1 else 'repeats'} {format_layers(originals)}"
        for copies, originals in group_copies(equal_layers.items())
    ]
    if sentences and stack is not None:
        more = f", and {len(sentences) - 3} more such cases" if len(sentences) > 3 else ""
        yield Problem(
            f"{stack.prefix}: {', '.join(sentences[:3])}{more}, byte for byte",
            file=ckpt.file_of(stack.full_name(min(equal_layers))),
            key=stack.full_name(min(equal_layers)),
            hint="convert again, with the offset of each pipeline stage, unless the model was made deeper by repeating layers",
        )
    ckpt.require_values()
