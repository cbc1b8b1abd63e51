"""A layer lacks what its sibling layers have.

## What it checks
Layers are compared with each other, not with a list of names, so that an architecture nobody has heard of is checked
too. Layers are siblings when the config gives them the same entry in every per-layer list (`layer_types`,
`block_configs`, `mlp_only_layers`, …). A layer that has only some of what at least two siblings have is incomplete.
One that has no two siblings is compared with all layers, and is incomplete where a component is torn: some of its
tensors are there.

## Why it matters
transformers starts the missing tensors from random numbers with a warning that scrolls by; vLLM leaves uninitialised
memory inside a fused projection and reports it as loaded.

## How to fix
Export or convert again; look at which rank or shard the tensors should have come from.

## When it can be wrong
An architecture may leave something out of one layer by design and not say so in its config. A norm or a scale that
only the first layer lacks (ModernBERT, Zaya) and layers that share keys and values with earlier ones
(`num_kv_shared_layers`) are known.

## Seen in
NVIDIA-NeMo/RL#2124, NVIDIA-NeMo/Megatron-Bridge#2892
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.families import family_of
from ckptcheck.checkpoint.layout import LAYER_NAMES, Stack
from ckptcheck.checkpoint.packing import fold
from ckptcheck.checkpoint.siblings import Names, incomplete, kinds
from ckptcheck.phrase import few, ranges


@rule(
    "CFG005", "incomplete-layer", severity="error", when=lambda ckpt: bool(ckpt.anatomy.layers) and not ckpt.is_partial
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy = ckpt.anatomy
    for stack in anatomy.layout.stacks.values():
        main = stack is anatomy.stack
        if not main and stack.prefix.rpartition(".")[2] not in LAYER_NAMES:
            continue
        layers = {layer: fold(names) for layer, names in (anatomy.layers if main else stack.layers).items()}
        said = kinds(ckpt.config.text, len(layers)) if main and ckpt.config is not None else {}
        lacking: dict[Names, dict[int, list[int]]] = {}
        for layer, (missing, having) in incomplete(layers, said, alike=main).items():
            if not _by_design(ckpt, stack, layer, missing, having):
                lacking.setdefault(missing, {})[layer] = having
        for missing, where in lacking.items():
            first = min(where)
            yield Problem(
                f"{stack.prefix}: {'layer' if len(where) == 1 else 'layers'} {ranges(where)} "
                f"{'lacks' if len(where) == 1 else 'lack'} {few(missing)}, which layers {ranges(where[first])} have",
                file=ckpt.holder(stack.name(first)),
                key=stack.name(first, min(missing)),
                hint="export again; until then transformers starts it from random numbers",
            )


def _by_design(ckpt: Checkpoint, stack: Stack, layer: int, missing: Names, having: list[int]) -> bool:
    """Layers that share keys and values with earlier ones, and a norm or scale that the first layer does without."""
    if stack is ckpt.anatomy.stack and ckpt.config is not None:
        sharing = ckpt.config.integer("num_kv_shared_layers") or 0
        if layer >= len(ckpt.anatomy.layers) - sharing:
            return True
    if layer or family_of(ckpt.config) is not None:
        return False
    found = [ckpt.tensors.get(stack.name(having[0], name)) for name in missing]
    return all(tensor is not None and len(tensor.shape) < 2 for tensor in found)
