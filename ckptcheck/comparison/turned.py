"""GPTQ's and AWQ's tensors, seen as those of a packed weight whose rows are outputs. All of theirs lie transposed.

GPTQ (AutoGPTQ, GPTQModel): qweight [I × bits / 32, O] holds the numbers of a column from the lowest bit on, qzeros [groups,
O × bits / 32] the zero points, scales [groups, O], g_idx [I] the group of each input. The first format (gptq, the
default) stores zero points less one, gptq_v2 as they are. AWQ (AutoAWQ's gemm): qweight [I, O / 8], qzeros [groups, O / 8], eight
outputs in a word in an order of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.bridge.area import Area

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTHS = (2, 4, 8)
"""Bits that divide a word: of three, ways to pack differ."""


@dataclass(frozen=True)
class Turned:
    """The same tensors by the roles of compressed-tensors. shape: outputs, inputs; group: inputs that share a scale."""

    parts: Mapping[str, Area]
    bits: int
    shape: tuple[int, int]
    group: int


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs lies in which half byte of a word."""


def turned(areas: Mapping[str, Area], method: str) -> Turned | None:
    """Return the tensors turned over, None where their shapes do not fit each other. areas: role → tensor; method: gptq or awq."""
    weight, zeros, scales, index = (areas.get(role) for role in ("qweight", "qzeros", "scales", "g_idx"))
    if weight is None or zeros is None or scales is None or weight.dtype != "I32" or zeros.dtype != "I32":
        return None
    if any(len(area.shape) != 2 or not all(area.shape) for area in (weight, zeros, scales)):
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
        "weight_packed": weight.transposed(),
        "weight_scale": scales.transposed(),
        "weight_zero_point": zeros.transposed(),
        **({"weight_g_idx": index} if index is not None else {}),
    }
    return Turned(parts, bits, (outputs, inputs), inputs // groups)


def interleaved(words: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers, less 8, that AWQ's words hold. words: [outputs / 8, columns]."""
    import numpy as np

    found = np.empty((len(words), 8, words.shape[1]), np.int32)
    for place, output in enumerate(AWQ_ORDER):
        found[:, output] = (words.view(np.uint32) >> np.uint32(4 * place)) & np.uint32(15)
    return found.reshape(-1, words.shape[1]) - 8
