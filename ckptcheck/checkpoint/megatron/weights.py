"""Unstacks the weights of a model by layer and expert, however the checkpoint stacks them.

`torch_dist` stores homogeneous layers stacked: ``decoder.layers.mlp.linear_fc1.weight`` is [layers, rows, columns], experts
are [layers, experts, rows, columns]. With `singleton_local_shards`, and if layers differ, each layer has keys of its own, and the
halves of a gated ``linear_fc1`` are ``weight_w`` and ``weight_v``. This module gives each weight its name in Megatron's module,
``decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight``, numbered over the whole model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

import msgspec

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor

OTHER = re.compile(
    r"(^|\.)(optimi[sz]ers?|optim|opt_param_scheduler|rng_state|rerun_state_machine_state|chained_\d+)(\.|$)"
)
"""Keys of the training state, not of the model. prime-rl (src/prime_rl/trainer/ckpt.py) puts it below app.optimizers."""
PREFIX = re.compile(r"^(module\.|model\.)+(?=(embedding|decoder|output_layer|mtp|value_head|language_model)\.)")
STACKED_LAYERS = re.compile(r"^(.*\blayers)\.(?!\d)")
_LAYERS = re.compile(r"layers\.(?!\d)")
"""A stack of layers in one tensor. The pattern begins with letters, so that it rejects other keys fast."""
STACKED_EXPERTS = re.compile(r"\bexperts\.experts\.(?!\d)")
EXPERT = re.compile(r"\bexperts\.experts\.(?=\d)")
HALF = re.compile(r"\.(weight|bias)_([wv])$")
LEAST_PARTS, PARTS_A_CHUNK = 1 << 15, 4
"""Most layers and experts that are unstacked: a base for a run with few chunks, and so many more for each chunk.

Megatron writes a chunk for each layer and expert. A hostile shape of 2^20 layers takes a few bytes, and would become as many
tensors.
"""


def is_weight(key: str) -> bool:
    """Whether a key belongs to the model, not to the state of an optimizer or a random generator."""
    # Substring tests first: five times as fast as the regular expression.
    if "opt" in key or "rng_" in key or "rerun_" in key or "chained_" in key:
        return not OTHER.search(key)
    return True


def unstack_weights(tensors: Mapping[str, GlobalTensor]) -> dict[str, GlobalTensor]:
    """Return the model's weights, unstacked and with the halves of gated layers joined; a malformed weight stays as it is."""
    weights: dict[str, GlobalTensor] = {}
    halves: dict[str, dict[str, GlobalTensor]] = {}
    left = LEAST_PARTS
    for key, tensor in tensors.items():
        if not is_weight(key):
            continue
        bare = PREFIX.sub("", key) if key.startswith("mo") else key
        left += PARTS_A_CHUNK * len(tensor.chunks)
        parts = _unstacked(bare, tensor, left)
        left -= len(parts)
        for name, part in parts:
            if name.endswith(("_w", "_v")) and (match := HALF.search(name)):
                halves.setdefault(f"{name[: match.start()]}.{match[1]}", {})[match[2]] = part
            else:
                weights[name] = part
    for name, pair in halves.items():
        if pair.keys() == {"w", "v"} and name not in weights:
            weights[name] = _joined(name, pair["w"], pair["v"])
        else:
            weights |= {f"{name}_{half}": part for half, part in pair.items()}
    return weights


def _unstacked(name: str, tensor: GlobalTensor, most: int) -> Sequence[tuple[str, GlobalTensor]]:
    """Split a tensor along its axes of layers and experts; keep it whole if there would be more than `most` parts."""
    axes = []
    if _LAYERS.search(name) and (match := STACKED_LAYERS.match(name)):
        axes.append((STACKED_LAYERS, f"{match[1]}."))
    if "experts.experts." in name and STACKED_EXPERTS.search(name):
        axes.append((STACKED_EXPERTS, "experts.local_experts."))
    if not axes:
        return ((EXPERT.sub("experts.local_experts.", name) if "experts.experts." in name else name, tensor),)
    if len(tensor.shape) < len(axes) or _count_parts(tensor, len(axes)) > most:
        return ((name, tensor),)
    named = [(name, tensor)]
    for pattern, before in axes:
        unstacked = []
        for whole, stacked in named:
            match = pattern.search(whole)
            assert match is not None
            begin, end = whole[: match.start()] + before, whole[match.end() :]
            unstacked += [(f"{begin}{number}.{end}", part) for number, part in enumerate(_rows(stacked))]
        named = unstacked
    return [(EXPERT.sub("experts.local_experts.", whole), part) for whole, part in named]


def _count_parts(tensor: GlobalTensor, axes: int) -> int:
    """Return into how many parts the first axes split a tensor or, if its chunks overlap, the chunks: the larger number."""
    shape = tensor.shape[:axes]
    of_chunks = sum(
        prod(min(max(size, 0), full) for size, full in zip(chunk.sizes, shape, strict=False)) for chunk in tensor.chunks
    )
    return max(prod(shape), of_chunks)


def _rows(tensor: GlobalTensor) -> list[GlobalTensor]:
    """Split a tensor along its first axis: one tensor for each index."""
    chunks: list[list[Chunk]] = [[] for _ in range(tensor.shape[0])]
    for chunk in tensor.chunks:
        size = prod(chunk.sizes[1:])
        first = chunk.offsets[0]
        for number in range(max(first, 0), min(first + chunk.sizes[0], len(chunks))):
            skip = chunk.skip + (number - first) * size
            whole = chunk.whole or chunk.elements
            chunks[number].append(Chunk(chunk.offsets[1:], chunk.sizes[1:], chunk.item, chunk.record, skip, whole))
    return [GlobalTensor(tensor.key, tensor.dtype, tensor.shape[1:], tuple(parts)) for parts in chunks]


def _joined(name: str, first: GlobalTensor, second: GlobalTensor) -> GlobalTensor:
    """Concatenate the halves of a gated weight along the rows."""
    rows = first.shape[0] if first.shape else 0
    below = (
        msgspec.structs.replace(chunk, offsets=(chunk.offsets[0] + rows, *chunk.offsets[1:]))
        for chunk in second.chunks
        if chunk.offsets
    )
    shape = (rows + second.shape[0], *first.shape[1:]) if first.shape and second.shape else first.shape
    return GlobalTensor(name, first.dtype, shape, (*first.chunks, *below))
