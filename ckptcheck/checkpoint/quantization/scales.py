"""Lists the scales of quantized weights, for rules that check their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.storage import ModuleTensor

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SIGN = ("F32", "F16", "BF16")
"""dtypes whose last byte, in file order, holds the sign."""


def iter_scales(ckpt: Checkpoint) -> Iterator[tuple[str, str, ModuleTensor]]:
    """Yield the name of each scale, the name of the weight it belongs to, and what its header says."""
    assert ckpt.quantization is not None
    for stored, modules in ckpt.quantization.storages.items():
        if not stored.is_quantized or stored.weight is None:
            continue
        parts = [part for role, part in stored.parts.items() if "scale" in role or role in ("SCB", "absmax")]
        for module in modules if parts else ():
            weight = stored.name(module, stored.weight.role)
            for part in parts:
                yield stored.name(module, part.role), weight, part
