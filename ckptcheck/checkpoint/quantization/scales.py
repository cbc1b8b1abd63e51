"""Every scale of a quantized weight, for rules that look at its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.stored import Part

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

SIGN = ("F32", "F16", "BF16")
"""dtypes whose last byte, as files store them, holds the sign."""


def scales_of(ckpt: Checkpoint) -> Iterator[tuple[str, str, Part]]:
    """Yield the name of each scale, the name of the weight it belongs to, and what its header says."""
    assert ckpt.quantization is not None
    for stored, modules in ckpt.quantization.stored.items():
        if not stored.is_quantized or stored.weight is None:
            continue
        parts = [part for role, part in stored.parts.items() if "scale" in role or role in ("SCB", "absmax")]
        for module in modules if parts else ():
            weight = stored.name(module, stored.weight.role)
            for part in parts:
                yield stored.name(module, part.role), weight, part
