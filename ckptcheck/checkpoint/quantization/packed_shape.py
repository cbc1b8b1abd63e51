"""How many columns a weight packed into words may have had."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.quantization.stored import Stored


def columns_of(schemes: Sequence[Scheme], stored: Stored) -> set[int]:
    """Return every number of columns that packs into the stored words, and has the stored groups, under any of the schemes."""
    found: set[int] = set()
    weight, scale = stored.weight, stored.parts.get("weight_scale")
    if weight is None:
        return found
    words = weight.shape[-1]
    for scheme in schemes:
        if scheme.format != "pack-quantized" or scheme.weights is None or not scheme.weights.bits:
            continue
        bits, group = scheme.weights.bits, scheme.weights.group_size
        fitting = range((words - 1) * 32 // bits + 1, words * 32 // bits + 1)
        if scheme.weights.strategy == "group" and group and scale is not None and scale.shape:
            found |= {columns for columns in fitting if -(-columns // group) == scale.shape[-1]}
        else:
            found |= set(fitting)
    return found
