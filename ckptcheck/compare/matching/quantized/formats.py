"""Finds the quantized weights of a checkpoint and picks the format of each. It never guesses an unknown format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.quantized.codebook import build_codebook_weight
from ckptcheck.compare.matching.quantized.fp4 import build_fp4_weight
from ckptcheck.compare.matching.quantized.scaled import build_scaled_weight
from ckptcheck.compare.matching.quantized.weight import QuantizedWeight, UnsupportedWeight
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.quantization.storage import ModuleStorage


def find_quantized_weights(
    ckpt: Checkpoint, stored: Mapping[str, TensorLayout]
) -> tuple[dict[str, QuantizedWeight], frozenset[str]]:
    """Return weight → how it is quantized, and the names of all stored tensors that belong to quantized weights.

    ckpt: one with a quantization.
    """
    quantization = ckpt.quantization
    assert quantization is not None
    weights: dict[str, QuantizedWeight] = {}
    consumed: set[str] = set()
    for way, modules in quantization.storages.items():
        if not way.is_quantized or way.is_misnamed or (weight := way.weight) is None:
            continue
        ending = ".weight" if weight.ending.startswith(".") else ""
        for module in modules:
            found = build_quantized_weight(ckpt, way, module, stored)
            if found is not None:
                consumed.update(found.names)
                weights[module + ending] = found
    return weights, frozenset(consumed)


def build_quantized_weight(
    ckpt: Checkpoint, way: ModuleStorage, module: str, stored: Mapping[str, TensorLayout]
) -> QuantizedWeight | None:
    """Return the weight of a module that is stored quantized; None if one of its tensors is not in `stored`."""
    quantization, weight = ckpt.quantization, way.weight
    assert quantization is not None
    assert weight is not None
    names = (way.name(module, weight.role), *(way.name(module, role) for role in way.companions))
    layouts = {role: stored[way.name(module, role)] for role in way.parts if way.name(module, role) in stored}
    if len(layouts) < len(way.parts):
        return None
    kind = f"{quantization.method or 'an undeclared method'}, {weight.role} {weight.dtype}"
    return (
        build_fp4_weight(quantization.method, layouts, names)
        or (build_codebook_weight(ckpt, layouts, names) if quantization.method == "bitsandbytes" else None)
        or build_scaled_weight(ckpt, quantization, layouts, names)
        or UnsupportedWeight(
            names,
            layouts[weight.role].shape,
            layouts,
            f"quantized by {kind}, a format that diff does not dequantize",
        )
    )


def open_quantized_weight(ckpt: Checkpoint, way: ModuleStorage, module: str) -> QuantizedWeight | None:
    """Return the weight of one module of a checkpoint; None where a tensor is missing or does not match its header."""
    layouts: dict[str, TensorLayout] = {}
    for role in way.parts:
        name = way.name(module, role)
        tensor = ckpt.tensors.get(name)
        if tensor is None or name in (shard := ckpt.shards[ckpt.tensor_to_file[name]]).unfit:
            return None
        form = FORMATS[tensor.dtype]
        if form.packed:
            return None
        layouts[name] = TensorLayout.contiguous(
            tensor.dtype, form.bits // 8, tensor.shape, shard.name, shard.locate(name)
        )
    return build_quantized_weight(ckpt, way, module, layouts)
