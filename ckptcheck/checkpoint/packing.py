"""Names under which a module's weight is stored when it is quantized, and the companions it has then.

Partial quantization is normal: some layers are packed, others plain. To compare modules, a packed weight counts as the
weight, and companions (scales, zero points, …) do not count; whether they are complete is for the quantization rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PACKED = re.compile(r"(?<=[._])(qweight|weight_packed|weight_blocks)$|_blocks$")
COMPANION = re.compile(
    r"scale|zero_?point|(^|\.)(scales|qzeros|g_idx|biases|SCB|weight_shape|weight_format|absmax|quant_map|nested_\w+)$"
    r"|(^|\.)(absmax|quant_map|nested_\w+|quant_state)(\.|$)|weight\.(absmax|quant_map|nested|quant_state)"
)


def folded(name: str) -> str | None:
    """Return the name that the tensor would have in a model that is not quantized, None for a companion."""
    if COMPANION.search(name.rpartition("proj.")[2] or name) and not name.endswith("layer_scale"):
        return None
    return re.sub(r"(?<=\.)(qweight|weight_packed)$", "weight", name).removesuffix("_blocks")


def fold(names: Iterable[str]) -> frozenset[str]:
    """Fold all names of a layer."""
    return frozenset(core for name in names if (core := folded(name)) is not None)
