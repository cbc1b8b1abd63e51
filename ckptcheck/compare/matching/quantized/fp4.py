"""Weights stored as 4-bit floats (E2M1), two in a byte, the first in the low half; 16 or 32 inputs share a scale.

MXFP4: scales are powers of two (E8M0, 2^(pattern - 127)), one for 32 inputs. As gpt-oss is released: `*_blocks` [experts,
outputs, inputs / 32, 16] and `*_scales` [experts, outputs, inputs / 32], which transformers dequantizes to [experts, inputs,
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

from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.quantized.weight import DequantizedRows, QuantizedWeight, SplitByTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.compare.matching.tensor_files import TensorFiles

POWERS = ("U8", "F8_E8M0")
"""dtypes of scales that are powers of two."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of the eight positive codes."""
LARGEST = 6.0
"""The largest number of E2M1 (OCP Microscaling Formats 1.0)."""
CLIPPED = 4.0
"""Step above the largest number with power-of-two scales: these leave numbers of up to 8 (OCP Microscaling 1.0, 6.3), half
a step beyond 6."""


@dataclass(frozen=True)
class Fp4Weight(QuantizedWeight):
    """A weight of 4-bit floats with scales.

    parts: "codes" [outputs, inputs / 2] and "scales" [outputs, groups]; NVFP4 adds "above", a single number that scales the
    scales. Stacked experts have the shape of the dense tensor, [experts, inputs, outputs], and so have their parts: they must
    be split before they are read.
    """

    # Whether "above" divides the scales or multiplies them.
    divides: bool = False

    @property
    def unsupported_reason(self) -> str | None:
        """Why it cannot be dequantized: stacked experts must be split first."""
        return "quantized experts stacked in one tensor, of a family without a table" if len(self.shape) != 2 else None

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return self.parts["codes"].nbytes

    def split(self, layout: SplitByTable) -> dict[str, QuantizedWeight] | None:
        """Split stacked experts. The split of the dense tensor applies to the rows of both parts."""
        if len(self.shape) != 3 or (codes := layout(self.parts["codes"])) is None:
            return None
        scales = layout(self.parts["scales"]) or {}
        return {
            name: replace(
                self, shape=(layout.shape[0], 2 * layout.shape[1]), parts={"codes": layout, "scales": scales[name]}
            )
            for name, layout in codes.items()
        }

    def dequantize_rows(self, files: TensorFiles, begin: int, end: int) -> DequantizedRows:
        """Return rows [begin, end) of the weight. Raises as the base class says."""
        import numpy as np

        raw = files.read_tensor(self.parts["codes"].cut(0, begin, end))
        stored = self.parts["scales"]
        dtype = "F8_E8M0" if stored.dtype in POWERS else stored.dtype
        scale = files.read_numbers(stored.cut(0, begin, end), dtype)[:, :, None]
        values, below, above = (
            table[raw].reshape(len(raw), stored.shape[1], -1) for table in lookup_tables(dtype == "F8_E8M0")
        )
        if dtype == "F8_E8M0":
            results = [part * scale for part in (values, below, above)]
        else:
            factor = files.read_numbers(self.parts["above"]).reshape(-1)[0]
            whole = scale / factor if self.divides else scale * factor
            one = np.abs(1 / factor if self.divides else factor)
            _, exponent = np.frexp(scale)
            # The step of the fp8 scale itself.
            coarse = LARGEST * np.ldexp(np.float32(1), np.maximum(exponent - 4, -9))
            beyond = np.maximum(2 * np.abs(scale), coarse) * one
            limit = np.abs(values) == LARGEST
            results = [values * whole]
            for part, outward in ((below, values < 0), (above, values > 0)):
                results.append(np.where((limit & outward) | (scale == 0), beyond, part * np.abs(whole)))
        return DequantizedRows(*(part.reshape(len(raw), -1).astype(np.float32, copy=False) for part in results))


@cache
def lookup_tables(clips: bool) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the two numbers of each byte [256, 2], and their distances to the next lower and the next higher number.

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


def build_fp4_weight(
    method: str | None, layouts: Mapping[str, TensorLayout], names: tuple[str, ...]
) -> Fp4Weight | None:
    """Return the weight that a module's tensors form; None if they have none of these formats. layouts: role → tensor."""
    if method == "mxfp4":
        return _build_gpt_oss_weight(layouts, names)
    role, name = {
        "compressed-tensors": ("weight_packed", "weight_global_scale"), "modelopt": ("weight", "weight_scale_2"),
    }.get(method or "", ("", ""))  # fmt: skip
    codes, scales, above = layouts.get(role), layouts.get("weight_scale"), layouts.get(name)
    if codes is None or scales is None or codes.dtype != "U8" or len(codes.shape) != 2 or len(scales.shape) != 2:
        return None
    if "weight_zero_point" in layouts:
        return None
    shape = (codes.shape[0], 2 * codes.shape[1])
    parts = {"codes": codes, "scales": scales}
    if scales.dtype in POWERS and above is None and scales.shape == (shape[0], shape[1] / 32):
        return Fp4Weight(names, shape, parts)
    if scales.dtype != "F8_E4M3" or above is None or above.dtype != "F32" or prod(above.shape) != 1:
        return None
    if scales.shape != (shape[0], shape[1] / 16):
        return None
    return Fp4Weight(names, shape, {**parts, "above": above}, method == "compressed-tensors")


def _build_gpt_oss_weight(layouts: Mapping[str, TensorLayout], names: tuple[str, ...]) -> Fp4Weight | None:
    codes, scales = layouts.get("weight_blocks"), layouts.get("weight_scales")
    if codes is None or scales is None or codes.dtype != "U8" or scales.dtype not in POWERS:
        return None
    if len(codes.shape) != 4 or codes.shape[:3] != scales.shape or codes.shape[3] != 16 or not prod(codes.shape):
        return None
    experts, outputs, groups, _ = codes.shape
    parts = {"codes": _view_as_dense(codes, 16 * groups), "scales": _view_as_dense(scales, groups)}
    return Fp4Weight(names, (experts, 32 * groups, outputs), parts)


def _view_as_dense(layout: TensorLayout, columns: int) -> TensorLayout:
    """View bytes [experts, outputs, columns] in the order of the dense tensor: [experts, columns, outputs]."""
    experts, outputs = layout.shape[:2]
    shape, chunk = (experts, columns, outputs), layout.chunks[0]
    strides = (outputs * columns, 1, columns)
    return TensorLayout(layout.dtype, 1, shape, (FileChunk((0, 0, 0), shape, chunk.file, chunk.offset, strides),))
