"""Finds layers that lack tensors of their siblings, except layers that may lack them by design."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.layout import LAYER_NAMES, Stack
from ckptcheck.checkpoint.packing import unquantized_names
from ckptcheck.checkpoint.siblings import CLEAR, SPARSE, Names, find_incomplete_layers, layer_kinds

KEYS_OR_VALUES = re.compile(r"(^|\.)(k|v|kv|key|value)_(proj|norm)(\.|$)")
"""What a layer that shares its keys and values with an earlier one may lack."""


def iter_compared_stacks(ckpt: Checkpoint) -> Iterator[Stack]:
    """Yield the stacks whose layers are compared with each other."""
    if not ckpt.components.layers:
        return
    for stack in ckpt.layout.stacks.values():
        if stack is not ckpt.components.stack and stack.prefix.rpartition(".")[2] not in LAYER_NAMES:
            continue  # lists of modules that are no layers, such as the four of XLM
        nests = any("{}" in name for names in stack.layers.values() for name in names)
        if ckpt.components.is_language_model or not nests:  # the stages of an image encoder differ by design
            yield stack


def list_kinds(ckpt: Checkpoint, stack: Stack) -> dict[int, str]:
    """Map each layer of a stack to its kind, as far as the config gives it."""
    if stack is not ckpt.components.stack or ckpt.config is None:
        return {}
    return layer_kinds(ckpt.config.text, max(ckpt.components.layers, default=-1) + 1)


def find_torn_layers(ckpt: Checkpoint, stack: Stack) -> dict[int, tuple[Names, list[int]]]:
    """Map each layer that is incomplete without design to the names it lacks and to the layers that have them."""
    is_main = stack is ckpt.components.stack
    stored = ckpt.components.layers if is_main else stack.layers
    layers = {layer: unquantized_names(names) for layer, names in stored.items()}
    torn: dict[int, tuple[Names, list[int]]] = {}
    for layer, (missing, having) in find_incomplete_layers(
        layers, list_kinds(ckpt, stack), alike=is_main and ckpt.components.is_language_model
    ).items():
        if layer in list_sharing_layers(ckpt, stack):
            missing = frozenset(name for name in missing if not KEYS_OR_VALUES.search(name))
        if missing and not _is_by_design(ckpt, stack, layer, missing, layers):
            torn[layer] = missing, having
    return torn


def _is_by_design(ckpt: Checkpoint, stack: Stack, layer: int, missing: Names, layers: Mapping[int, Names]) -> bool:
    """Whether a layer may lack these tensors, because too few layers show that they are usual.

    In a family whose layers are all alike, two layers show it. In other families the first layer may lack a norm, a scale, or a
    part that only some kinds of layers have; any layer may lack such a part unless a clear majority has it.
    """
    if stack is ckpt.components.stack and ckpt.config is not None and family_of(ckpt.config) is not None:
        return False
    having = [other for other, names in layers.items() if missing <= names]
    if all(SPARSE.search(name) for name in missing):
        kinds = list_kinds(ckpt, stack)
        if layer in kinds and [*kinds.values()].count(kinds[layer]) == 1:
            return True  # the only layer of its kind: MiMo-V2-Flash may have one with full attention among layers with sinks
        return len(having) < CLEAR or layer == 0
    found = [ckpt.tensors.get(stack.full_name(having[0], name)) for name in missing]
    return layer == 0 and all(tensor is not None and len(tensor.shape) < 2 for tensor in found)


def list_sharing_layers(ckpt: Checkpoint, stack: Stack | None) -> range:
    """Return the layers that compute with the keys and values of an earlier one, as the last layers of Gemma 3n and 4 do."""
    shared = ckpt.config.number("num_kv_shared_layers") if ckpt.config is not None else None
    depth = ckpt.components.num_layers or len(ckpt.components.layers)
    return range(max(depth - (shared or 0), 0), depth if stack is not None and stack is ckpt.components.stack else 0)
