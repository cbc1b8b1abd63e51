"""Splits the fused tensors of an engine's module into the tensors that a trainer sends, by name and by range of elements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ckptcheck.consumers.engine_tensors import EXPERT_PROJECTIONS, EXPERTS_TENSOR, EXPERTS_WHOLE, find_source_tensors
from ckptcheck.consumers.structures import FUSED_MODULES


def split_fused(name: str, tensor: Any, module: Any, sent: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (name, view) of each part of a fused tensor, under the trainer's names; or the whole tensor if it is not fused.

    Args:
        name: the engine's name of the tensor.
        tensor: anything with `shape` and `narrow`, in the engine's layout.
        module: the engine's module that owns it. vLLM and SGLang keep there how many outputs each part of a fused layer has on this
            rank (`output_partition_sizes`), and which experts the rank has (`expert_map`).
        sent: the trainer's names; empty if this process sent nothing: then the usual names stand in for them.

    It yields a tensor whole if its parts are not certain.
    """
    if name in sent:
        yield name, _cut_padding(tensor, module)
        return
    yield from (
        _split_experts(name, tensor, module, sent) or _split_linear(name, tensor, module, sent) or [(name, tensor)]
    )


def _cut_padding(tensor: Any, module: Any) -> Any:
    """Return the rows of the model's own vocabulary: vLLM and SGLang pad embeddings and heads at their end, for the kernels.

    Where a rank has a part of the vocabulary, it has fewer rows than that, and they are returned whole.
    """
    own = getattr(module, "org_vocab_size", None)
    if isinstance(own, int) and not isinstance(own, bool) and len(tensor.shape) and 0 < own < tensor.shape[0]:
        return tensor.narrow(0, 0, own)
    return tensor


def _split_linear(name: str, tensor: Any, module: Any, sent: Collection[str]) -> list[tuple[str, Any]]:
    path, _, last = name.rpartition(".")
    parent, _, own = path.rpartition(".")
    prefix = f"{parent}." if parent else ""
    usual = [f"{prefix}{part}.{last}" for part in FUSED_MODULES.get(own, ())]
    names = find_source_tensors(name, sent) if sent else usual
    if 0 < len(names) < len(usual):
        # yield a part that the trainer does not send too: the rules report what changes it
        root = names[0].removesuffix(f".{last}").rpartition(".")[0]
        names = tuple(f"{root}.{part}.{last}" if root else f"{part}.{last}" for part in FUSED_MODULES[own])
    sizes = getattr(module, "output_partition_sizes", None)
    if len(names) < 2 or not isinstance(sizes, list | tuple) or len(sizes) != len(names):
        return []
    dim = getattr(tensor, "output_dim", 0)
    if not isinstance(dim, int) or not -len(tensor.shape) <= dim < len(tensor.shape) or tensor.shape[dim] != sum(sizes):
        return []
    return list(zip(names, _cut(tensor, dim, sizes), strict=True))


def _split_experts(name: str, tensor: Any, module: Any, sent: Collection[str]) -> list[tuple[str, Any]]:
    match = EXPERTS_TENSOR.fullmatch(name)
    if match is None or len(tensor.shape) < 2:
        return []
    numbers = _expert_numbers(module, tensor.shape[0])
    sources = set(find_source_tensors(name, sent))
    if sources == {whole := f"{match[1]}.{EXPERTS_WHOLE[match[2]]}"}:
        return [(whole, tensor)] if len(numbers) == tensor.shape[0] else []
    for parts in EXPERT_PROJECTIONS[match[2]] if sent else EXPERT_PROJECTIONS[match[2]][:1]:
        names = {f"{match[1]}.{number}.{part}.{match[3]}" for number in numbers for part in parts}
        # without a map of experts, a rank with a part of them would give them wrong numbers
        if names and (not sent or sources == names or (sources > names and _expert_map(module) is not None)):
            break
        # the trainer does not send all: only a rank with all experts still knows the order of the others
        if sources and sources < names and _expert_map(module) is None:
            break
    else:
        return []
    if tensor.shape[1] % len(parts):
        return []
    return [
        (f"{match[1]}.{number}.{part}.{match[3]}", view)
        for place, number in enumerate(numbers)
        for part, view in zip(parts, _cut(tensor[place], 0, [tensor.shape[1] // len(parts)] * len(parts)), strict=True)
    ]


def _expert_numbers(module: Any, local: int) -> list[int]:
    """Return the number of each expert that this rank has, in the order of its tensor; [] if that is not known."""
    mapping = _expert_map(module)
    if mapping is None:
        total = getattr(module, "global_num_experts", None) or getattr(module, "num_experts", local)
        return list(range(local)) if total == local else []
    if not hasattr(mapping, "tolist"):
        return []
    places = {place: number for number, place in enumerate(mapping.tolist()) if place >= 0}
    return [places[place] for place in range(local)] if places.keys() == set(range(local)) else []


def _expert_map(module: Any) -> Any:
    """Return the map from an expert's number to its place on this rank, as vLLM keeps it, None if there is none."""
    for attribute in ("expert_map", "_expert_map"):
        if (mapping := getattr(module, attribute, None)) is not None:
            return mapping
    return None


def _cut(tensor: Any, dim: int, sizes: Sequence[int]) -> Iterator[Any]:
    begin = 0
    for size in sizes:
        yield tensor.narrow(dim, begin, size)
        begin += size
