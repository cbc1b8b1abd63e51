"""Computes the possible numbers of columns of a weight that is packed into words."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.checkpoint.quantization.schemes import Scheme
from ckptcheck.checkpoint.quantization.storage import ModuleStorage


def possible_columns(schemes: Sequence[Scheme], stored: ModuleStorage) -> set[int]:
    """Return every number of columns that, under one of the schemes, gives the stored numbers of words and groups."""
    columns: set[int] = set()
    weight, scale = stored.weight, stored.parts.get("weight_scale")
    if weight is None:
        return columns
    words = weight.shape[-1]
    for scheme in schemes:
        if scheme.format != "pack-quantized" or scheme.weights is None or not scheme.weights.bits:
            continue
        bits, group = scheme.weights.bits, scheme.weights.group_size
        fitting = range((words - 1) * 32 // bits + 1, words * 32 // bits + 1)
        if scheme.weights.strategy == "group" and group and scale is not None and scale.shape:
            columns |= {columns for columns in fitting if -(-columns // group) == scale.shape[-1]}
        else:
            columns |= set(fitting)
    return columns
