"""bitsandbytes' weights of 4 bits: numbers of a table (nf4, fp4), two in a byte, the first in the high half.

Inputs and outputs are one line, of which each block (64 numbers and more) shares a largest magnitude, `absmax`. With double
quantization that is a byte: a number of `nested_quant_map` times the `nested_absmax` of 256 blocks, plus `nested_offset`. What
else there is to know stands in JSON in `quant_state.bitsandbytes__nf4`. The table is that of the type's name: bitsandbytes 0.50
does not read `quant_map` either (functional.py `QuantState`, backends/default/ops.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.comparison.packed import Numbers, Packed
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.comparison.reading import Files

CODES = {
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "fp4": tuple(sign * size / 12 for sign in (1, -1) for size in (0, 0.0625, 8, 12, 4, 6, 2, 3)),
}  # fmt: skip
"""Type → the number of each code, as parts of the largest magnitude."""
MOST = 1 << 16
"""Bytes of JSON that are read."""


@dataclass(frozen=True)
class Codebook(Packed):
    """parts: "codes", a line of bytes; "absmax"; "map" and "nested" with double quantization. kind: nf4 or fp4.

    block: numbers that share a largest magnitude; nested_block: of these that share one. offset: added to those.
    """

    kind: str = "nf4"
    block: int = 64
    nested_block: int = 256
    offset: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return self.parts["codes"].nbytes

    def rows(self, files: Files, begin: int, end: int) -> Numbers:
        """Return rows of the weight. Raises Unreadable, ValueError where there are too few of something."""
        import numpy as np

        first, last = begin * self.shape[1], end * self.shape[1]
        raw = files.whole(self.parts["codes"].cut(0, first // 2, -(-last // 2)))
        codes = np.stack([raw >> 4, raw & 15], -1).reshape(-1)[first % 2 :][: last - first]
        low = first // self.block
        scale, error = self._largest(files, low, -(-last // self.block))
        of = np.arange(first, last) // self.block - low
        scale, error = scale[of], error[of]
        sizes = np.array(CODES[self.kind], np.float32)
        values = sizes[codes] * scale
        gaps = [
            table[codes] * np.abs(scale) + (2 * np.abs(sizes)[codes] + table[codes]) * error for table in _gaps(sizes)
        ]
        return Numbers(*(part.reshape(end - begin, -1) for part in (values, *gaps)))

    def _largest(self, files: Files, begin: int, end: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the largest magnitude of blocks, and by how much double quantization may have moved it."""
        import numpy as np

        area = self.parts["absmax"].cut(0, begin, end)
        if "map" not in self.parts:
            found = decode(area.dtype, files.whole(area)).astype(np.float32)
            return found, np.zeros_like(found)
        table = decode("F32", files.whole(self.parts["map"]))
        nested = decode("F32", files.whole(self.parts["nested"]))[np.arange(begin, end) // self.nested_block]
        codes = files.whole(area)
        below, above = _gaps(table)
        return table[codes] * nested + np.float32(self.offset), np.maximum(below, above)[codes] / 2 * np.abs(nested)


def _gaps(sizes: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return how far the next number below and above is, for each of a table in any order; at its ends as far as inwards."""
    import numpy as np

    known, inverse = np.unique(sizes, return_inverse=True)
    if len(known) < 2:
        raise ValueError("a table of one number")
    gap = np.diff(known)
    return np.append(gap[0], gap)[inverse], np.append(gap, gap[-1])[inverse]


def codebook_of(ckpt: Checkpoint, areas: Mapping[str, Area], names: tuple[str, ...]) -> Codebook | None:
    """Return the weight that a module's tensors make up, None where they do not fit each other. areas: role → tensor."""
    weight, absmax, told = areas.get("weight"), areas.get("absmax"), areas.get("quant_state")
    if weight is None or absmax is None or told is None or told.dtype != "U8" or len(absmax.shape) != 1:
        return None
    kind = next((kind for kind in CODES if any(name.endswith(f".bitsandbytes__{kind}") for name in names)), None)
    state = _state(ckpt, told)
    sides, block, wide = state.get("shape"), _size(state.get("blocksize")), _size(state.get("nested_blocksize"))
    shape = tuple(map(_size, sides)) if isinstance(sides, list) else ()
    if kind is None or state.get("quant_type") != kind or len(shape) != 2 or not prod(shape) or not block:
        return None
    if weight.nbytes < -(-prod(shape) // 2) or absmax.shape[0] != -(-prod(shape) // block):
        return None
    chunk = weight.chunks[0]
    parts = {"codes": Area.whole("U8", 1, (weight.nbytes,), chunk.file, chunk.offset), "absmax": absmax}
    if "nested_absmax" not in areas and absmax.dtype == "F32":
        return Codebook(names, shape, parts, kind, block)
    table, nested, offset = areas.get("nested_quant_map"), areas.get("nested_absmax"), state.get("nested_offset")
    if table is None or nested is None or absmax.dtype != "U8" or not wide:
        return None
    if (table.dtype, table.shape, nested.dtype) != ("F32", (256,), "F32"):
        return None
    if nested.shape != (-(-absmax.shape[0] // wide),) or not isinstance(offset, float) or not isfinite(offset):
        return None
    parts |= {"map": table, "nested": nested}
    return Codebook(names, shape, parts, kind, block, wide, offset)


def _state(ckpt: Checkpoint, area: Area) -> dict[str, object]:
    """Read the JSON of a `quant_state` tensor, {} where it is none."""
    chunk = area.chunks[0]
    try:
        found = json.loads(ckpt.source.read(chunk.file, chunk.offset, min(area.nbytes, MOST)))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(value: object) -> int:
    """Return a positive whole number, 0 for anything else."""
    return value if type(value) is int and value > 0 else 0
