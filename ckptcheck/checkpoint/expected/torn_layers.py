"""Finds layers that lack tensors that their siblings have, or that transformers builds in every layer."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.incomplete_layers import find_torn_layers, iter_compared_stacks, list_kinds
from ckptcheck.checkpoint.layer_blocks import block_of, find_lacking_layers, list_layer_tensors
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import Names, find_incomplete_layers
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import format_layers, join_truncated

HINT = "export again; until then transformers initializes it with random numbers"


def find_torn_layer_faults(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield layers that lack what their siblings have, then, by the architecture, what every layer lacks."""
    for stack in iter_compared_stacks(ckpt):
        lacking: dict[Names, dict[int, list[int]]] = {}
        for layer, (missing, having) in find_torn_layers(ckpt, stack).items():
            lacking.setdefault(missing, {})[layer] = having
        for missing, where in lacking.items():
            first = min(where)
            explained.names |= missing
            explained.torn.setdefault(stack.prefix, set()).update(where)
            problem = Problem(
                f"{stack.prefix}: {format_layers(where)} "
                f"{'lacks' if len(where) == 1 else 'lack'} {join_truncated(missing)}, which "
                f"{format_layers(where[first])} {'has' if len(where[first]) == 1 else 'have'}",
                file=ckpt.file_of(stack.full_name(first)),
                key=stack.full_name(first, min(missing)),
                hint=HINT,
            )
            yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in missing))
    if not ckpt.components.is_draft:  # EAGLE's layer has no norm before its attention
        yield from _find_by_architecture(ckpt, explained)


def _find_by_architecture(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield parts of the blocks that transformers builds and that layers lack, where siblings do not show it."""
    stack, is_family = ckpt.components.stack, family_of(ckpt.config) is not None
    if stack is None or ckpt.config is None:
        return
    layers = {layer: unquantized_names(names) for layer, names in ckpt.components.layers.items()}
    found = find_lacking_layers(layers, list_layer_tensors(ckpt.config, stack.prefix), alike=is_family)
    if not found:
        return
    unlike = find_incomplete_layers(layers, list_kinds(ckpt, stack), alike=ckpt.components.is_language_model)
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, where in found.items():
        lacking = tuple(layer for layer in where if layer not in unlike or name not in unlike[layer][0])
        if lacking and name not in explained.names:
            together.setdefault((block_of(name), lacking), []).append(name)
    explained.names |= found.keys()
    for (block, lacking), names in together.items():
        one = len(lacking) == 1
        is_torn = all(any(block_of(other) == block for other in layers[layer]) for layer in lacking)
        why = (
            f"although {'it has' if one else 'they have'} the rest of the block"
            if block and is_torn
            else f"which transformers builds in every layer of {ckpt.config.architecture}"
        )
        explained.torn.setdefault(stack.prefix, set()).update(lacking)
        problem = Problem(
            f"{stack.prefix}: {format_layers(lacking)} {'lacks' if one else 'lack'} {join_truncated(names)}, {why}",
            file=ckpt.file_of(stack.full_name(lacking[0])),
            key=stack.full_name(lacking[0], names[0]),
            hint=HINT,
        )
        yield Fault("missing", problem, frozenset(f"{stack.prefix}.{{}}.{name}" for name in names))
