"""Reads weights of a layer that computes with a packed copy, from the layer's outputs.

vLLM's CPU build packs the weight of a linear layer for oneDNN or for its own kernels and leaves an empty parameter behind
(`dispatch_cpu_unquantized_gemm` of vLLM 0.32). The packed copy cannot be read, but the layer's product with a row of the identity
matrix is a column of the weight.
"""

from __future__ import annotations

from typing import Any

COLUMNS = 256
"""Columns of a weight that are read at most, evenly spread: as much work as 256 tokens are for the layer."""


def read_packed_weight(layer: Any) -> Any:
    """Return columns of a packed weight, [outputs, columns] in the layer's dtype; None if the layer cannot run alone.

    The product keeps every number but the sign of zeros, so two answers show whether the weight changed, and an answer does not
    equal what was sent bit for bit.
    """
    multiply, empty = getattr(layer, "cpu_linear", None), getattr(layer, "weight", None)
    inputs = _count_inputs(layer, multiply)
    if multiply is None or empty is None or empty.numel() or not inputs:
        return None
    count = min(inputs, COLUMNS)
    rows = empty.detach().new_zeros((count, inputs))
    for row in range(count):
        rows[row, row * inputs // count] = 1
    product = multiply(rows, empty, None)
    return product.t() if tuple(product.shape)[:1] == (count,) else None


def _count_inputs(layer: Any, multiply: Any) -> int:
    """Return the length of the layer's input; 0 if unknown."""
    for cell in getattr(multiply, "__closure__", None) or ():
        try:
            inputs = getattr(cell.cell_contents, "k", None)
        except ValueError:  # an empty cell
            continue
        if isinstance(inputs, int) and inputs > 0:
            return inputs
    for attribute in ("input_size_per_partition", "embedding_dim", "input_size"):
        inputs = getattr(layer, attribute, None)
        if isinstance(inputs, int) and inputs > 0:
            return inputs
    return 0
