"""Weights of integers or fp8, each times the scale of its tensor, row, group or block.

Formats: compressed_tensors/compressors pack_quantized (a stream of bits, lowest first, each number with 2^(bits - 1) added),
naive_quantized, float_quantized (0.20); DeepSeek-V3's weight_scale_inv, which despite its name is multiplied, one for each
block of 128 × 128; GPTQ's and AWQ's (turned.py); bitsandbytes' int8, whose SCB is the largest magnitude of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.bridge.area import Area
from ckptcheck.comparison.packed import Numbers, Packed
from ckptcheck.comparison.turned import interleaved, turned
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.quantization.quantization import Quantization
    from ckptcheck.comparison.reading import Files

SCALES = ("weight_scale", "weight_scale_inv")
FLOATS = ("F64", "F32", "F16", "BF16")
SCALE_DTYPES = (*FLOATS, "F8_E8M0")


@dataclass(frozen=True)
class Scaled(Packed):
    """A weight of O rows and I columns.

    bits: of a packed number, 8 where it is not packed. block: rows and columns that share a scale. shift: what is added
    to a stored zero point. interleaved: eight rows share a row of words, in AWQ's order. steps: into how many the scale is
    divided.
    """

    bits: int = 8
    block: tuple[int, int] = (1, 1)
    shift: int = 0
    interleaved: bool = False
    steps: int = 1

    @property
    def weight(self) -> Area:
        """The tensor that holds the numbers."""
        return self.parts["weight_packed"] if "weight_packed" in self.parts else self.parts["weight"]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that holds the numbers."""
        return self.weight.nbytes

    def rows(self, files: Files, begin: int, end: int) -> Numbers:
        """Return rows [begin, end) of the weight. Raises Unreadable, IndexError or ValueError where parts do not fit."""
        import numpy as np

        raw = files.whole(
            self.weight.cut(0, begin // 8, -(-end // 8)) if self.interleaved else self.weight.cut(0, begin, end)
        )
        scale = self._scales(files, begin, end)
        if self.weight.dtype == "F8_E4M3":
            numbers = decode("F8_E4M3", raw)
            _, exponent = np.frexp(numbers)  # numbers = m × 2^exponent with m in [0.5, 1)
            finest = np.where(numbers == 0, -9, np.maximum(exponent - 4, -9))
            step = np.ldexp(np.float32(1), finest).astype(np.float32)
            step *= np.abs(scale)
            return Numbers(numbers * scale, step, step)
        codes = raw.view(np.int8).astype(np.int32) if self.bits == 8 and self.weight.itemsize == 1 else None
        if self.interleaved:
            codes = interleaved(raw)[begin % 8 :][: end - begin]
        elif codes is None:
            codes = unpacked(raw, self.bits, self.shape[1])
        if "weight_zero_point" in self.parts:
            codes = codes - self._zero_points(files, begin, end)
        numbers = codes.astype(np.float32) * scale
        grid = np.broadcast_to(np.abs(scale), numbers.shape)
        return Numbers(numbers, grid, grid, grid * 2**self.bits if "weight_zero_point" in self.parts else None)

    def _columns(self, files: Files) -> NDArray[Any]:
        """Return for each column the number of its group."""
        import numpy as np

        if "weight_g_idx" in self.parts:
            return files.whole(self.parts["weight_g_idx"]).view(np.int32).clip(0)
        return np.arange(self.shape[1]) // self.block[1]

    def _scales(self, files: Files, begin: int, end: int) -> NDArray[np.float32]:
        """Return the scale of every number in these rows, in a shape that broadcasts."""
        import numpy as np

        area = next(self.parts[role] for role in SCALES if role in self.parts)
        values = decode(area.dtype, files.whole(area)).astype(np.float32) / np.float32(self.steps)
        grid = values.reshape(1, 1) if values.size == 1 else values.reshape(values.shape[0], -1)
        if grid.shape[0] > 1:
            grid = grid[np.arange(begin, end) // self.block[0]]
        if grid.shape[1] > 1:
            grid = grid[:, self._columns(files)]
        return grid

    def _zero_points(self, files: Files, begin: int, end: int) -> NDArray[np.int32]:
        import numpy as np

        area = self.parts["weight_zero_point"]
        raw = files.whole(area)
        if self.interleaved:
            grid = interleaved(raw)
        elif area.dtype == "I32":
            grid = unpacked(np.ascontiguousarray(raw.T), self.bits, self.shape[0]).T
        else:
            grid = raw.view(np.int8).astype(np.int32).reshape((raw.shape[0], -1) if raw.size > 1 else (1, 1))
        if grid.shape[0] not in (1, self.shape[0]) or grid.shape[1] not in (1, -(-self.shape[1] // self.block[1])):
            raise ValueError("zero points that do not fit the weight")
        if self.shift:
            half = 1 << (self.bits - 1)
            grid = (grid + half + self.shift) % (2 * half) - half
        if grid.shape[0] > 1:
            grid = grid[begin:end]
        return grid[:, self._columns(files)] if grid.shape[1] > 1 else grid


def unpacked(words: NDArray[Any], bits: int, columns: int) -> NDArray[np.int32]:
    """Return the signed numbers that rows of 32-bit words hold."""
    import numpy as np

    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    fields = stream[:, : columns * bits].reshape(words.shape[0], columns, bits)
    weights = (1 << np.arange(bits)).astype(np.int32)
    return (fields @ weights).astype(np.int32) - (1 << (bits - 1))


def scaled_of(
    ckpt: Checkpoint, quantization: Quantization, areas: Mapping[str, Area], names: tuple[str, ...]
) -> Scaled | None:
    """Return the weight that a module's tensors make up, None where they are not of these formats. areas: role → tensor."""
    if quantization.method in ("gptq", "awq"):
        over, is_awq = turned(areas, quantization.method), quantization.method == "awq"
        shift = 0 if is_awq or quantization.config.get("checkpoint_format") == "gptq_v2" else 1
        if over is None:
            return None
        return Scaled(names, over.shape, over.parts, over.bits, (1, over.group), shift, is_awq)
    packed, weight = areas.get("weight_packed"), areas.get("weight")
    area = packed or weight
    if area is None or len(area.shape) != 2:
        return None
    shape = (area.shape[0], area.shape[1])
    if quantization.method == "bitsandbytes":
        largest = areas.get("SCB")
        if area.dtype != "I8" or largest is None or largest.dtype not in FLOATS or largest.shape != shape[:1]:
            return None
        return Scaled(names, shape, {"weight": area, "weight_scale": largest}, block=(1, shape[1]), steps=127)
    scale = next((areas[role] for role in SCALES if role in areas), None)
    if scale is None or scale.dtype not in SCALE_DTYPES:
        return None
    bits = 8
    if packed is not None:
        columns = _second_number(ckpt, areas["weight_shape"]) if "weight_shape" in areas else None
        known = {scheme.weights.bits for scheme in quantization.schemes if scheme.weights is not None}
        choices = {
            width
            for width in known
            if width and columns and 1 <= width <= 8 and -(-columns * width // 32) == area.shape[1]
        }
        if area.dtype != "I32" or columns is None or len(choices) != 1:
            return None
        bits, shape = choices.pop(), (area.shape[0], columns)
    elif area.dtype not in ("I8", "F8_E4M3"):
        return None
    block = _block(quantization, scale, shape)
    return Scaled(names, shape, areas, bits, block) if block is not None else None


def _block(quantization: Quantization, scale: Area, shape: tuple[int, int]) -> tuple[int, int] | None:
    """Return how many rows and columns share a scale, None where the shapes do not tell."""
    if prod(scale.shape) == 1 or scale.shape in ((shape[0],), (shape[0], 1)):
        return (1, shape[1])
    sides = tuple(length for length in scale.shape if length != 1) if len(scale.shape) == 4 else scale.shape
    if len(sides) != 2:
        return None
    for scheme in quantization.schemes:
        block = scheme.weights.block if scheme.weights is not None else None
        if block and (-(-shape[0] // block[0]), -(-shape[1] // block[1])) == sides:
            return block
    if sides[0] == shape[0] and sides[1] and shape[1] % sides[1] == 0:
        return (1, shape[1] // sides[1])
    return None


def _second_number(ckpt: Checkpoint, area: Area) -> int | None:
    """Return the columns that a `weight_shape` tensor tells."""
    if prod(area.shape) != 2 or area.itemsize not in (4, 8):
        return None
    chunk = area.chunks[0]
    try:
        raw = ckpt.source.read(chunk.file, chunk.offset, area.nbytes)
    except OSError:
        return None
    value = int.from_bytes(raw[area.itemsize :], "little")
    return value if 0 < value < 1 << 31 else None
