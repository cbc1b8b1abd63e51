"""The weights of a model by layer and expert, whichever way the checkpoint stacks them.

`torch_dist` stores homogeneous layers stacked: ``decoder.layers.mlp.linear_fc1.weight`` is [layers, rows, columns], experts
are [layers, experts, rows, columns]. With `singleton_local_shards`, and where layers differ, each layer has keys of its own,
and the halves of a gated ``linear_fc1`` are ``weight_w`` and ``weight_v``. Here each becomes what Megatron's module calls it:
``decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight``, numbered over the whole model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor

OTHER = re.compile(
    r"(^|\.)(optimi[sz]ers?|optim|opt_param_scheduler|rng_state|rerun_state_machine_state|chained_\d+)(\.|$)"
)
"""Keys of what is trained with, not of what is trained. prime-rl (src/prime_rl/trainer/ckpt.py) has it below app.optimizers."""
PREFIX = re.compile(r"^(module\.|model\.)+(?=(embedding|decoder|output_layer|mtp|value_head|language_model)\.)")
STACKED_LAYERS = re.compile(r"^(.*\blayers)\.(?!\d)")
_LAYERS = re.compile(r"layers\.(?!\d)")
"""Begins with letters, so that a search of a key that is not stacked costs next to nothing."""
STACKED_EXPERTS = re.compile(r"\bexperts\.experts\.(?!\d)")
EXPERT = re.compile(r"\bexperts\.experts\.(?=\d)")
HALF = re.compile(r"\.(weight|bias)_([wv])$")


def is_weight(key: str) -> bool:
    """Whether a key is of the model: no optimizer state, no state of a random generator."""
    if "opt" in key or "rng_" in key or "rerun_" in key or "chained_" in key:  # five times as fast
        return not OTHER.search(key)
    return True


def weights_of(tensors: Mapping[str, GlobalTensor]) -> dict[str, GlobalTensor]:
    """Return the model's weights, unstacked, the halves of gated layers joined; a malformed one is left as it is."""
    found: dict[str, GlobalTensor] = {}
    halves: dict[str, dict[str, GlobalTensor]] = {}
    for key, tensor in tensors.items():
        if not is_weight(key):
            continue
        bare = PREFIX.sub("", key) if key.startswith("mo") else key
        for name, part in _unstacked(bare, tensor):
            if name.endswith(("_w", "_v")) and (match := HALF.search(name)):
                halves.setdefault(f"{name[: match.start()]}.{match[1]}", {})[match[2]] = part
            else:
                found[name] = part
    for name, pair in halves.items():
        if pair.keys() == {"w", "v"} and name not in found:
            found[name] = _joined(name, pair["w"], pair["v"])
        else:
            found |= {f"{name}_{half}": part for half, part in pair.items()}
    return found


def _unstacked(name: str, tensor: GlobalTensor) -> Iterable[tuple[str, GlobalTensor]]:
    """Take the axes of layers and of experts off."""
    axes = []
    if _LAYERS.search(name) and STACKED_LAYERS.match(name):
        axes.append((STACKED_LAYERS, r"\1.{}."))
    if "experts.experts." in name and STACKED_EXPERTS.search(name):
        axes.append((STACKED_EXPERTS, "experts.local_experts.{}."))
    if not axes:
        return ((EXPERT.sub("experts.local_experts.", name) if "experts.experts." in name else name, tensor),)
    if len(tensor.shape) < len(axes) or prod(tensor.shape[: len(axes)]) > 1 << 20:
        return ((name, tensor),)
    named = [(name, tensor)]
    for pattern, new in axes:
        named = [
            (pattern.sub(new.replace("{}", str(number)), whole, count=1), part)
            for whole, stacked in named
            for number, part in enumerate(_rows(stacked))
        ]
    return [(EXPERT.sub("experts.local_experts.", whole), part) for whole, part in named]


def _rows(tensor: GlobalTensor) -> list[GlobalTensor]:
    """Take the first axis off: a tensor for each index."""
    chunks: list[list[Chunk]] = [[] for _ in range(tensor.shape[0])]
    for chunk in tensor.chunks:
        size = prod(chunk.sizes[1:])
        first = chunk.offsets[0]
        for number in range(max(first, 0), min(first + chunk.sizes[0], len(chunks))):
            skip = chunk.skip + (number - first) * size
            chunks[number].append(Chunk(chunk.offsets[1:], chunk.sizes[1:], chunk.item, chunk.record, skip))
    return [GlobalTensor(tensor.key, tensor.dtype, tensor.shape[1:], tuple(parts)) for parts in chunks]


def _joined(name: str, first: GlobalTensor, second: GlobalTensor) -> GlobalTensor:
    """Put one half of a gated weight above the other."""
    rows = first.shape[0] if first.shape else 0
    below = (
        Chunk((chunk.offsets[0] + rows, *chunk.offsets[1:]), chunk.sizes, chunk.item, chunk.record, chunk.skip)
        for chunk in second.chunks
        if chunk.offsets
    )
    shape = (rows + second.shape[0], *first.shape[1:]) if first.shape and second.shape else first.shape
    return GlobalTensor(name, first.dtype, shape, (*first.chunks, *below))


def covered(tensor: GlobalTensor) -> int:
    """Return how many elements its chunks hold together."""
    return sum(chunk.elements for chunk in tensor.chunks)


def files_of(tensors: Iterable[GlobalTensor]) -> set[str]:
    """Return the files that hold these tensors."""
    return {chunk.item.file for tensor in tensors for chunk in tensor.chunks if chunk.item is not None}
