"""A layer lacks a tensor that every such layer of its architecture has.

## What it checks
In the causal language models of transformers: every layer has the tensors that transformers builds in it. A layer that has one
of `q_proj`, `k_proj`, `v_proj`, `o_proj` has all four, and the norms of queries and keys where the architecture has them; one
that has experts has their router (`mlp.gate`); one that has `up_proj` has `down_proj`; and all have their layer norms. Which
tensors these are was learned from transformers, by building every architecture. Quantized weights count under their packed names.

The rule does not compare layers with each other. So it finds what every layer lacks, and what one of two layers lacks; where
enough siblings of a layer have the tensor, CFG005 reports it. Outside of the common decoder families (Llama, Qwen3, …) layers
may be of several kinds. There only a weight counts without which its block is whole, and which no layer has, or one of two.

## Why it matters
transformers initializes the missing tensors with random numbers. A pattern in an export script that matches nothing drops
the same tensor from all layers, and every layer looks like its siblings. A router without weights sends tokens to random experts.

## How to fix
Export again, and check which name the exporter does not map.

## When it can be wrong
The model's own code under a known `model_type` may omit a matrix or store q, k and v fused; transformers' class of that
family loads neither. Use `--ignore CFG020` if only that code reads the model. A block with a matrix of another name is left to
CFG016 and CFG017. Unknown architectures are not checked, nor is what a switch of the config adds (CFG010, CFG029).

## Seen in
No public report of one tensor in all layers: paiml/entrenar#258 lost all biases so. slime's debugging guide asks to count the
keys of the first layer of experts.
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.layer_blocks import block_of, find_lacking_layers, list_layer_tensors
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import find_incomplete_layers, layer_kinds
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.text.formatting import format_layers, join_truncated


@rule(
    "CFG020",
    "torn-component",
    severity="error",
    when=lambda ckpt: (
        not ckpt.is_partial and (family_of(ckpt.config) is not None or WeightsTable.of(ckpt.config) is not None)
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    ckpt.require_whole()
    stack = ckpt.components.stack
    if (
        stack is None or ckpt.config is None or ckpt.components.is_draft
    ):  # EAGLE's layer has no norm before its attention
        return
    layers = {layer: unquantized_names(names) for layer, names in ckpt.components.layers.items()}
    built = list_layer_tensors(ckpt.config, stack.prefix)
    found = find_lacking_layers(layers, built, alike=family_of(ckpt.config) is not None)
    if not found:
        return
    # What siblings show is CFG005's.
    unlike = find_incomplete_layers(
        layers, layer_kinds(ckpt.config.text, len(layers)), alike=ckpt.components.is_language_model
    )
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, where in found.items():
        lacking = tuple(layer for layer in where if layer not in unlike or name not in unlike[layer][0])
        if lacking:
            together.setdefault((block_of(name), lacking), []).append(name)
    for (block, lacking), names in together.items():
        one = len(lacking) == 1
        is_torn = all(any(block_of(other) == block for other in layers[layer]) for layer in lacking)
        why = (
            f"although {'it has' if one else 'they have'} the rest of the block"
            if block and is_torn
            else f"which transformers builds in every layer of {ckpt.config.architecture}"
        )
        yield Problem(
            f"{stack.prefix}: {format_layers(lacking)} {'lacks' if one else 'lack'} {join_truncated(names)}, {why}",
            file=ckpt.file_of(stack.full_name(lacking[0])),
            key=stack.full_name(lacking[0], names[0]),
            hint="export again; until then transformers initializes it with random numbers",
        )
