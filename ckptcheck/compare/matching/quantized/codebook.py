"""bitsandbytes' 4-bit weights: indices into a table of numbers (nf4, fp4), two in a byte, the first in the high half.

The weight is flattened; each block of it (64 numbers or more) shares a largest magnitude, `absmax`. With double quantization
`absmax` is a byte: an index into `nested_quant_map`, times the `nested_absmax` of 256 blocks, plus `nested_offset`. The other
parameters are JSON in `quant_state.bitsandbytes__nf4`. The type's name determines the table: bitsandbytes 0.50 does not read
`quant_map` either (functional.py `QuantState`, backends/default/ops.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.quantized.weight import DequantizedRows, QuantizedWeight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.matching.tensor_files import TensorFiles

CODES = {
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "fp4": tuple(sign * size / 12 for sign in (1, -1) for size in (0, 0.0625, 8, 12, 4, 6, 2, 3)),
}  # fmt: skip
"""Type → the number of each code, relative to the largest magnitude."""
MAX_JSON_BYTES = 1 << 16
"""Bytes of JSON that are read."""


@dataclass(frozen=True)
class CodebookWeight(QuantizedWeight):
    """A weight of 4-bit table indices.

    parts: "codes", flat bytes; "absmax"; with double quantization also "map" and "nested".
    """

    # "nf4" or "fp4".
    kind: str = "nf4"
    # Numbers that share a largest magnitude.
    block: int = 64
    # Blocks that share a nested largest magnitude.
    nested_block: int = 256
    # Added to every dequantized largest magnitude.
    offset: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return self.parts["codes"].nbytes

    def dequantize_rows(self, files: TensorFiles, begin: int, end: int) -> DequantizedRows:
        """Return rows [begin, end) of the weight. Raises as the base class says."""
        import numpy as np

        first, last = begin * self.shape[1], end * self.shape[1]
        raw = files.read_tensor(self.parts["codes"].cut(0, first // 2, -(-last // 2)))
        codes = np.stack([raw >> 4, raw & 15], -1).reshape(-1)[first % 2 :][: last - first]
        low = first // self.block
        scale, error = self._largest(files, low, -(-last // self.block))
        block_of = np.arange(first, last) // self.block - low
        scale, error = scale[block_of], error[block_of]
        sizes = np.array(CODES[self.kind], np.float32)
        values = sizes[codes] * scale
        gaps = [
            table[codes] * np.abs(scale) + (2 * np.abs(sizes)[codes] + table[codes]) * error for table in _gaps(sizes)
        ]
        return DequantizedRows(*(part.reshape(end - begin, -1) for part in (values, *gaps)))

    def _largest(self, files: TensorFiles, begin: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the largest magnitudes of blocks [begin, end), and by how much double quantization may have moved them."""
        import numpy as np

        layout = self.parts["absmax"].cut(0, begin, end)
        if "map" not in self.parts:
            largest = files.read_numbers(layout)
            return largest, np.zeros_like(largest)
        table = files.read_numbers(self.parts["map"])
        nested = files.read_numbers(self.parts["nested"])[np.arange(begin, end) // self.nested_block]
        codes = files.read_tensor(layout)
        below, above = _gaps(table)
        return table[codes] * nested + np.float32(self.offset), np.maximum(below, above)[codes] / 2 * np.abs(nested)


def _gaps(sizes: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return for each number of an unsorted table the gaps to the next lower and the next higher one.

    At either end of the table the missing gap equals the other one.
    """
    import numpy as np

    known, inverse = np.unique(sizes, return_inverse=True)
    if len(known) < 2:
        raise ValueError("the table holds one number only")
    gap = np.diff(known)
    return np.append(gap[0], gap)[inverse], np.append(gap, gap[-1])[inverse]


def build_codebook_weight(
    ckpt: Checkpoint, layouts: Mapping[str, TensorLayout], names: tuple[str, ...]
) -> CodebookWeight | None:
    """Return the weight that a module's tensors form; None if they do not fit each other. layouts: role → tensor."""
    weight, absmax, quant_state = layouts.get("weight"), layouts.get("absmax"), layouts.get("quant_state")
    if weight is None or absmax is None or quant_state is None or quant_state.dtype != "U8" or len(absmax.shape) != 1:
        return None
    kind = next((kind for kind in CODES if any(name.endswith(f".bitsandbytes__{kind}") for name in names)), None)
    state = _read_state(ckpt, quant_state)
    sides, block, wide = (
        state.get("shape"),
        _positive_int(state.get("blocksize")),
        _positive_int(state.get("nested_blocksize")),
    )
    shape = tuple(map(_positive_int, sides)) if isinstance(sides, list) else ()
    if kind is None or state.get("quant_type") != kind or len(shape) != 2 or not prod(shape) or not block:
        return None
    if weight.nbytes < -(-prod(shape) // 2) or absmax.shape[0] != -(-prod(shape) // block):
        return None
    chunk = weight.chunks[0]
    parts = {"codes": TensorLayout.contiguous("U8", 1, (weight.nbytes,), chunk.file, chunk.offset), "absmax": absmax}
    if "nested_absmax" not in layouts and absmax.dtype == "F32":
        return CodebookWeight(names, shape, parts, kind, block)
    table, nested, offset = layouts.get("nested_quant_map"), layouts.get("nested_absmax"), state.get("nested_offset")
    if table is None or nested is None or absmax.dtype != "U8" or not wide:
        return None
    if (table.dtype, table.shape, nested.dtype) != ("F32", (256,), "F32"):
        return None
    if nested.shape != (-(-absmax.shape[0] // wide),) or not isinstance(offset, float) or not isfinite(offset):
        return None
    parts |= {"map": table, "nested": nested}
    return CodebookWeight(names, shape, parts, kind, block, wide, offset)


def _read_state(ckpt: Checkpoint, layout: TensorLayout) -> dict[str, object]:
    """Read the JSON of a `quant_state` tensor; {} if it is not a JSON object."""
    chunk = layout.chunks[0]
    try:
        state = json.loads(ckpt.source.read(chunk.file, chunk.offset, min(layout.nbytes, MAX_JSON_BYTES)))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def _positive_int(value: object) -> int:
    """Return a positive integer; 0 for anything else."""
    return value if type(value) is int and value > 0 else 0
