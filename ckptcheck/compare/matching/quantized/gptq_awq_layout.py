"""Views the tensors of GPTQ and AWQ, which are stored transposed, as a packed weight whose rows are outputs.

GPTQ (AutoGPTQ, GPTQModel): qweight [I × bits / 32, O] holds the numbers of a column from the lowest bit on, qzeros [groups,
O × bits / 32] the zero points, scales [groups, O], g_idx [I] the group of each input. The first format (gptq, the
default) stores zero points less one, gptq_v2 as they are. AWQ (AutoAWQ's gemm): qweight [I, O / 8], qzeros [groups, O / 8], eight
outputs in a word in an order of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.bridge.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTHS = (2, 4, 8)
"""Supported bits. Three bits do not divide a word, and libraries pack them differently."""


@dataclass(frozen=True)
class PackedLayout:
    """The same tensors under the roles of compressed-tensors."""

    parts: Mapping[str, TensorLayout]
    bits: int
    # Outputs, inputs.
    shape: tuple[int, int]
    # Inputs that share a scale.
    group: int


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output stored in each half byte of a word, lowest first."""


def to_packed_layout(layouts: Mapping[str, TensorLayout], method: str) -> PackedLayout | None:
    """Return the transposed tensors; None if their shapes do not fit each other.

    Args:
        layouts: role → tensor.
        method: gptq or awq.

    """
    weight, zeros, scales, index = (layouts.get(role) for role in ("qweight", "qzeros", "scales", "g_idx"))
    if weight is None or zeros is None or scales is None or weight.dtype != "I32" or zeros.dtype != "I32":
        return None
    if any(len(layout.shape) != 2 or not all(layout.shape) for layout in (weight, zeros, scales)):
        return None
    groups, outputs = scales.shape
    bits = zeros.shape[1] * 32 // outputs
    if bits not in (WIDTHS if method == "gptq" else (4,)) or zeros.shape != (groups, outputs * bits // 32):
        return None
    inputs = weight.shape[0] * 32 // bits if method == "gptq" else weight.shape[0]
    if weight.shape[1] != (outputs if method == "gptq" else outputs * bits // 32):
        return None
    if inputs % groups or (index is not None and (index.shape != (inputs,) or index.dtype != "I32")):
        return None
    parts = {
        "weight_packed": weight.transpose(),
        "weight_scale": scales.transpose(),
        "weight_zero_point": zeros.transpose(),
        **({"weight_g_idx": index} if index is not None else {}),
    }
    return PackedLayout(parts, bits, (outputs, inputs), inputs // groups)


def unpack_awq(words: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers minus 8 that AWQ's words [outputs / 8, columns] hold, as [outputs, columns]."""
    import numpy as np

    numbers = np.empty((len(words), 8, words.shape[1]), np.int32)
    for place, output in enumerate(AWQ_ORDER):
        numbers[:, output] = (words.view(np.uint32) >> np.uint32(4 * place)) & np.uint32(15)
    return numbers.reshape(-1, words.shape[1]) - 8
