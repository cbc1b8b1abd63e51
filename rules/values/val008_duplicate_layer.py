"""Two layers are the same, byte for byte.

## What it checks
No two layers of the language model have the same bytes in all their matrices.

## Why it matters
Pipeline-parallel conversions that forget the stage's offset write layers 0 and 1 again where 2 and 3 belong: the count is
right, the names are right, and half of the model is gone.

## How to fix
Convert again with the offset of each pipeline stage.

## When it can be wrong
Models that were made deeper by repeating layers, and never trained after, have equal layers by design (SOLAR's method before
its training, mergekit's passthrough, frankenmerges), and so have models that share weights between layers (ALBERT's method)
and were stored layer by layer. Layers that are equal except for a norm count as equal; layers equal in all but one matrix do
not. `--ignore VAL008`, or a reason under `[ignore]`, silences it.

## Seen in
huggingface/transformers#24381, NVIDIA/Megatron-LM#1583
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.values.compare import same_bytes
from ckptcheck.values.roles import is_matrix


@rule("VAL008", "duplicate-layer", severity="warning", on="values", when=lambda ckpt: len(ckpt.anatomy.layers) > 1)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack = ckpt.anatomy.stack
    assert stack is not None
    known: dict[tuple[tuple[str, float], ...], int] = {}
    for layer, names in sorted(ckpt.anatomy.layers.items()):
        found = {name: ckpt.values.tensors.get(stack.name(layer, name)) for name in sorted(names) if "{}" not in name}
        matrices = tuple(
            (name, stats.absmax) for name, stats in found.items() if stats and is_matrix(stats) and not stats.constant
        )
        if not matrices:
            continue
        twin = known.setdefault(matrices, layer)
        if twin != layer and all(
            same_bytes(ckpt, stack.name(layer, name), stack.name(twin, name)) for name, _ in matrices
        ):
            yield Problem(
                f"{stack.prefix}: layer {layer} is layer {twin} again, byte for byte in {len(matrices)} matrices",
                file=ckpt.holder(stack.name(layer)),
                key=stack.name(layer),
                hint="convert again, with the offset of each pipeline stage",
            )
    ckpt.require_values()
