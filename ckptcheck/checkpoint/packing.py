"""Names under which a module's weight is stored when it is quantized, and the companions it has then.

Partial quantization is normal: some layers are packed, others plain. To compare modules, a packed weight counts as the
weight, and companions (scales, zero points, …) do not count; whether they are complete is for the quantization rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PACKED = re.compile(r"(?<=\.)(qweight|weight_packed)$")
COMPANION = re.compile(
    r"(?<!layer_)scale|zero_?point|^(scales|qzeros|g_idx|biases|SCB|weight_shape|weight_format|absmax|quant_map|quant_state)$"
)
"""The last part of a companion's name."""


def folded(name: str) -> str | None:
    """Return the name that the tensor would have in a model that is not quantized, None for a companion.

    bitsandbytes puts companions below the weight (``weight.absmax``); gpt-oss packs a parameter into blocks and scales.
    """
    if ".weight." in name or COMPANION.search(name.rpartition(".")[2]):
        return None
    return PACKED.sub("weight", name).removesuffix("_blocks")


def fold(names: Iterable[str]) -> frozenset[str]:
    """Fold all names of a layer."""
    return frozenset(core for name in names if (core := folded(name)) is not None)
