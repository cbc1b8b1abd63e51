"""Weights of 4-bit floats (E2M1), two in a byte, the first in the low half; 16 or 32 inputs share a scale.

MXFP4: scales are powers of two (E8M0, 2^(pattern - 127)), one for 32 inputs. As gpt-oss is released: `*_blocks` [experts,
outputs, inputs / 32, 16] and `*_scales` [experts, outputs, inputs / 32], of which transformers makes [experts, inputs,
outputs] (integrations/mxfp4.py `convert_moe_packed_tensors`, 5.23); compressed-tensors: weight_packed, weight_scale.
NVFP4: scales are fp8 (E4M3), one for 16 inputs, with a float32 above them: compressed-tensors divides by its
weight_global_scale (compressors/nvfp4, 0.20), ModelOpt multiplies by its weight_scale_2 (vllm modelopt.py, 0.32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area, Chunk
from ckptcheck.comparison.packed import Layout, Numbers, Packed
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.comparison.reading import Files

POWERS = ("U8", "F8_E8M0")
"""dtypes of scales that are powers of two."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = 6.0
CLIPPED = 4.0
"""A power of two below the largest magnitude leaves numbers of up to 8 (OCP Microscaling 1.0, 6.3), half of this beyond 6."""


@dataclass(frozen=True)
class Fp4(Packed):
    """parts: "codes" [outputs, inputs / 2] and "scales" [outputs, groups]; "above", a single number, with NVFP4.

    divides: that number divides. Of stacked experts the shape is that of the dense tensor, [experts, inputs, outputs], and
    so are those of the parts: it has to be cut before it is read.
    """

    divides: bool = False

    @property
    def unknown(self) -> str | None:
        """Experts that were not cut cannot be read."""
        return "quantized experts in one tensor, of a family without a table" if len(self.shape) != 2 else None

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.parts["codes"].nbytes

    def cut(self, layout: Layout) -> dict[str, Packed] | None:
        """Cut stacked experts: what moves a dense tensor's rows moves those of both parts."""
        if len(self.shape) != 3 or (codes := layout(self.parts["codes"])) is None:
            return None
        scales = layout(self.parts["scales"]) or {}
        return {
            name: replace(self, shape=(area.shape[0], 2 * area.shape[1]), parts={"codes": area, "scales": scales[name]})
            for name, area in codes.items()
        }

    def rows(self, files: Files, begin: int, end: int) -> Numbers:
        """Return rows of the weight. Raises Unreadable, ValueError where there are no scales for them."""
        import numpy as np

        raw = files.whole(self.parts["codes"].cut(0, begin, end))
        stored = self.parts["scales"]
        dtype = "F8_E8M0" if stored.dtype in POWERS else stored.dtype
        patterns = files.whole(stored.cut(0, begin, end))
        scale = decode(dtype, patterns)[:, :, None]
        values, below, above = (
            table[raw].reshape(len(raw), stored.shape[1], -1) for table in tables(dtype == "F8_E8M0")
        )
        if dtype == "F8_E8M0":
            found = [part * scale for part in (values, below, above)]
        else:
            factor = (
                decode(self.parts["above"].dtype, files.whole(self.parts["above"])).astype(np.float32).reshape(-1)[0]
            )
            whole = scale / factor if self.divides else scale * factor
            one = np.abs(1 / factor if self.divides else factor)
            _, exponent = np.frexp(scale)
            coarse = LARGEST * np.ldexp(np.float32(1), np.maximum(exponent - 4, -9))  # of the fp8 scale itself
            beyond = np.maximum(2 * np.abs(scale), coarse) * one
            limit = np.abs(values) == LARGEST
            found = [values * whole]
            for part, outward in ((below, values < 0), (above, values > 0)):
                found.append(np.where((limit & outward) | (scale == 0), beyond, part * np.abs(whole)))
        return Numbers(*(part.reshape(len(raw), -1).astype(np.float32, copy=False) for part in found))


@cache
def tables(clips: bool) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return for each byte its two numbers [256, 2], and the distances to the next one below and above them.

    clips: the scales leave numbers beyond the largest.
    """
    import numpy as np

    sizes = np.array(MAGNITUDES, np.float32)
    inward = np.diff(sizes, prepend=-0.5)
    outward = np.append(np.diff(sizes), CLIPPED if clips else 2.0).astype(np.float32)
    per_code = (np.append(sizes, -sizes), np.append(inward, outward), np.append(outward, inward))
    pairs = np.arange(256)[:, None] >> np.array([0, 4]) & 15
    values, below, above = (table.astype(np.float32)[pairs] for table in per_code)
    return values, below, above


def fp4_of(method: str | None, areas: Mapping[str, Area], names: tuple[str, ...]) -> Fp4 | None:
    """Return the weight that a module's tensors make up, None where they are not of these formats. areas: role → tensor."""
    if method == "mxfp4":
        return _of_gpt_oss(areas, names)
    role, name = {
        "compressed-tensors": ("weight_packed", "weight_global_scale"), "modelopt": ("weight", "weight_scale_2"),
    }.get(method or "", ("", ""))  # fmt: skip
    codes, scales, above = areas.get(role), areas.get("weight_scale"), areas.get(name)
    if codes is None or scales is None or codes.dtype != "U8" or len(codes.shape) != 2 or len(scales.shape) != 2:
        return None
    if "weight_zero_point" in areas:
        return None
    shape = (codes.shape[0], 2 * codes.shape[1])
    parts = {"codes": codes, "scales": scales}
    if scales.dtype in POWERS and above is None and scales.shape == (shape[0], shape[1] / 32):
        return Fp4(names, shape, parts)
    if scales.dtype != "F8_E4M3" or above is None or above.dtype != "F32" or prod(above.shape) != 1:
        return None
    if scales.shape != (shape[0], shape[1] / 16):
        return None
    return Fp4(names, shape, {**parts, "above": above}, method == "compressed-tensors")


def _of_gpt_oss(areas: Mapping[str, Area], names: tuple[str, ...]) -> Fp4 | None:
    codes, scales = areas.get("weight_blocks"), areas.get("weight_scales")
    if codes is None or scales is None or codes.dtype != "U8" or scales.dtype not in POWERS:
        return None
    if len(codes.shape) != 4 or codes.shape[:3] != scales.shape or codes.shape[3] != 16 or not prod(codes.shape):
        return None
    experts, outputs, groups, _ = codes.shape
    parts = {"codes": _lying(codes, 16 * groups), "scales": _lying(scales, groups)}
    return Fp4(names, (experts, 32 * groups, outputs), parts)


def _lying(area: Area, columns: int) -> Area:
    """See bytes [experts, outputs, columns] as the dense tensor lies: [experts, columns, outputs]."""
    experts, outputs = area.shape[:2]
    shape, chunk = (experts, columns, outputs), area.chunks[0]
    strides = (outputs * columns, 1, columns)
    return Area(area.dtype, 1, shape, (Chunk((0, 0, 0), shape, chunk.file, chunk.offset, strides),))
