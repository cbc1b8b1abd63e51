"""Finds the quantized weights of a checkpoint and picks the format of each. It never guesses an unknown format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.quantized.codebook import build_codebook_weight
from ckptcheck.compare.matching.quantized.fp4 import build_fp4_weight
from ckptcheck.compare.matching.quantized.scaled import build_scaled_weight
from ckptcheck.compare.matching.quantized.weight import QuantizedWeight, UnsupportedWeight

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def find_quantized_weights(
    ckpt: Checkpoint, stored: Mapping[str, TensorLayout]
) -> tuple[dict[str, QuantizedWeight], frozenset[str]]:
    """Return weight → how it is quantized, and the names of all stored tensors that belong to quantized weights."""
    quantization = ckpt.quantization
    if quantization is None:
        return {}, frozenset()
    weights: dict[str, QuantizedWeight] = {}
    consumed: set[str] = set()
    for way, modules in quantization.storages.items():
        if not way.is_quantized or way.is_misnamed or (weight := way.weight) is None:
            continue
        ending = ".weight" if weight.ending.startswith(".") else ""
        kind = f"{quantization.method or 'an undeclared method'}, {weight.role} {weight.dtype}"
        for module in modules:
            names = (way.name(module, weight.role), *(way.name(module, role) for role in way.companions))
            layouts = {role: stored[way.name(module, role)] for role in way.parts if way.name(module, role) in stored}
            if len(layouts) < len(way.parts):
                continue
            consumed.update(names)
            weights[module + ending] = (
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
    return weights, frozenset(consumed)
