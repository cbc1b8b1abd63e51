"""A layer lacks what its sibling layers have, or has it in another shape.

## What it checks
Layers are compared with each other and not with a list of names, so the rule covers unknown architectures too. Layers are
siblings if the config gives them the same entry in every per-layer list or string (`layer_types`, `block_configs`,
`mlp_only_layers`, `hybrid_override_pattern`, …). A layer that has only a part of what at least two siblings have is incomplete. A
layer with fewer than two siblings is compared with all layers, and is incomplete if it has only some tensors of a component.

Where a model has two layers, or one of its layers alone has a tensor, CFG020 asks what transformers builds.

A layer that calls one module otherwise than its siblings lacks it too. A tensor that alone among at least four siblings (layers of
its kind, or experts of its layer) has another shape is reported; packed tensors are left out.

Several layers that lack the same are a kind of their own if they, or all others, stand at equal distances, or if they lack
nothing but what many architectures give to some layers only: attention sinks, indexers, compressors, gates, norms, biases. One
layer lacks a sink, an indexer or a compressor only if at least three others have it, and not if it is the first; in families
whose layers are all alike (Llama, Qwen3, …) two others are enough, wherever it stands.

## Why it matters
transformers initializes the missing tensors with random numbers and an easily missed warning; vLLM leaves uninitialized
memory inside a fused projection and reports it as loaded.

## How to fix
Export or convert again; check which rank or shard should have written the tensors.

## When it can be wrong
An architecture may omit a matrix from one layer, or from several at irregular places, by design and without saying so in its
config. Known cases are excluded: a norm or scale that only the first layer lacks (ModernBERT, Zaya), and layers at the end that
share keys and values with earlier ones (`num_kv_shared_layers`). The rule misses biases and norms that several layers have lost.

## Seen in
NVIDIA-NeMo/RL#2124, NVIDIA-NeMo/Megatron-Bridge#2892
"""

import re
from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks, list_kinds
from ckptcheck.checkpoint.siblings import Names, find_uneven_shapes
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import format_layers, format_shape, join_truncated

POSITIONS = re.compile(r"rel_pos|relative_position|position_bias")
"""Tables with a row for each distance that a layer can see."""


@rule(
    "CFG005",
    "incomplete-layer",
    severity="error",
    when=lambda ckpt: bool(ckpt.components.layers) and not ckpt.is_partial,
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    anatomy, table = ckpt.components, WeightsTable.of(ckpt.config)
    for stack in iter_compared_stacks(ckpt):
        main = stack is anatomy.stack
        lacking: dict[Names, dict[int, list[int]]] = {}
        for layer, (missing, having) in find_torn_layers(ckpt, stack).items():
            lacking.setdefault(missing, {})[layer] = having
        for missing, where in lacking.items():
            first = min(where)
            yield Problem(
                f"{stack.prefix}: {format_layers(where)} "
                f"{'lacks' if len(where) == 1 else 'lack'} {join_truncated(missing)}, which "
                f"{format_layers(where[first])} {'has' if len(where[first]) == 1 else 'have'}",
                file=ckpt.file_of(stack.full_name(first)),
                key=stack.full_name(first, min(missing)),
                hint="export again; until then transformers initializes it with random numbers",
            )

        for uneven in find_uneven_shapes(stack, list_kinds(ckpt, stack), ckpt.tensors):
            if not (main and anatomy.is_language_model) and uneven.layer in (min(stack.layers), max(stack.layers)):
                continue  # the ends of an encoder may be of another width
            if not main and POSITIONS.search(uneven.name):
                continue  # one layer of an encoder may see the whole image, the others a window of it (SAM)
            learned = table.shapes.get(f"{stack.prefix}.{{}}.{uneven.name}", "") if table is not None else ""
            if not main and "?" in learned:
                continue  # some layers of an encoder may attend to the whole image (SAM), the others through a window
            name = stack.full_name(uneven.layer, uneven.name)
            yield Problem(
                f"{stack.prefix}: in layer {uneven.layer} {uneven.name} has the shape {format_shape(uneven.shape)}, and "
                f"{format_shape(uneven.usual)} in all its siblings; transformers and vLLM refuse to load it",
                file=ckpt.tensor_to_file[name],
                key=name,
                hint="export again; the layer is torn, or comes from another model",
            )
