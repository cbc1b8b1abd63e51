"""Maps the tensor names of quantized weights to the names they have in an unquantized model.

Partial quantization is normal: some layers are packed, others plain. For comparing layers, a packed weight counts as the
weight and its companions (scales, zero points, …) are ignored; the quantization rules check whether they are complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckptcheck.checkpoint.tensor import Tensor

PACKED = re.compile(
    r"(?<=\.)(qweight|weight_packed|compressed|codes|indices|W_q|q_weight|trellis|Qidxs|B|B_24|dense_weights"
    r"|weight(?:\._data){1,2}|_?weight_qdata)$"
)
"""Names of the tensor that replaces the weight: in GPTQ and AWQ, compressed-tensors (2:4 sparse: `compressed`), AQLM, VPTQ, HQQ,
EXL2, EXL3, QuIP#, Marlin, SpQR, Quanto (which packs 4-bit and 2-bit numbers in a tensor below `_data`) and TorchAO."""
COMPANION = re.compile(
    r"(?<!layer_)scale|zero_?point|^(scales|qzeros|g_idx|biases|SCB|weight_shape|weight_format|absmax|quant_map|quant_state)$"
)
"""The last part of the name of a companion tensor."""


ONE_A_NUMBER = {
    "F8_E4M3": ("compressed-tensors", "fp8", "modelopt", "fbgemm_fp8"),
    "I8": ("compressed-tensors", "bitsandbytes"),
}
"""dtype → the methods that store one number per element of it, in the shape of the unquantized weight."""


def has_own_shape(tensor: Tensor, method: str | None) -> bool:
    """Whether a weight has its shape in an unquantized model: plain, or quantized without packing."""
    return tensor.is_plain or method in ONE_A_NUMBER.get(tensor.dtype, ())


def unquantized_name(name: str) -> str | None:
    """Return the name that a tensor has in an unquantized model; None for a companion tensor.

    bitsandbytes puts companions below the weight (``weight.absmax``); gpt-oss packs a parameter into blocks and scales.
    """
    if (".weight." in name and not PACKED.search(name)) or COMPANION.search(name.rpartition(".")[2]):
        return None
    return PACKED.sub("weight", name).removesuffix("_blocks")


def unquantized_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names that the tensors of a layer have in an unquantized model."""
    return frozenset(plain for name in names if (plain := unquantized_name(name)) is not None)
