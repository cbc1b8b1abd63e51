"""The quantized weights of a checkpoint, each by the format in which it is stored. What no format knows is not guessed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.comparison.codebook import codebook_of
from ckptcheck.comparison.fp4 import fp4_of
from ckptcheck.comparison.packed import Packed, Unknown
from ckptcheck.comparison.scaled import scaled_of

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


def packed_of(ckpt: Checkpoint, stored: Mapping[str, Area]) -> tuple[dict[str, Packed], frozenset[str]]:
    """Return weight → how it is quantized, and the names of all tensors that belong to those."""
    quantization = ckpt.quantization
    if quantization is None:
        return {}, frozenset()
    found: dict[str, Packed] = {}
    consumed: set[str] = set()
    for way, modules in quantization.stored.items():
        if not way.is_quantized or way.is_misnamed or (weight := way.weight) is None:
            continue
        ending = ".weight" if weight.ending.startswith(".") else ""
        kind = f"{quantization.method or 'an undeclared method'}, {weight.role} {weight.dtype}"
        for module in modules:
            names = (way.name(module, weight.role), *(way.name(module, role) for role in way.companions))
            areas = {role: stored[way.name(module, role)] for role in way.parts if way.name(module, role) in stored}
            if len(areas) < len(way.parts):
                continue
            consumed.update(names)
            found[module + ending] = (
                fp4_of(quantization.method, areas, names)
                or (codebook_of(ckpt, areas, names) if quantization.method == "bitsandbytes" else None)
                or scaled_of(ckpt, quantization, areas, names)
                or Unknown(
                    names, areas[weight.role].shape, areas, f"quantized by {kind}, which diff does not dequantise"
                )
            )
    return found, frozenset(consumed)
