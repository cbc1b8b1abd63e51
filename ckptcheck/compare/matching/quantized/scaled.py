"""Weights stored as integers or fp8 that are multiplied by the scale of their tensor, row, group or block.

Formats: compressed_tensors/compressors pack_quantized (a stream of bits, lowest first, each number with 2^(bits - 1) added),
naive_quantized, float_quantized (0.20); DeepSeek-V3's weight_scale_inv, which despite its name is multiplied, one for each
block of 128 × 128; bitsandbytes' int8, whose SCB is the largest magnitude of a row.

GPTQ and AWQ store everything transposed. GPTQ (AutoGPTQ, GPTQModel): qweight [I × bits / 32, O] holds the numbers of a column from
the lowest bit on, qzeros [groups, O × bits / 32] the zero points, scales [groups, O], g_idx [I] the group of each input. The first
format (gptq, the default) stores zero points less one, gptq_v2 as they are. AWQ (AutoAWQ's gemm): qweight [I, O / 8], qzeros
[groups, O / 8], eight outputs in a word in an order of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.quantized.weight import DequantizedRows, QuantizedWeight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.quantization.quantization import Quantization
    from ckptcheck.compare.matching.tensor_files import TensorFiles

SCALES = ("weight_scale", "weight_scale_inv")
FLOATS = ("F64", "F32", "F16", "BF16")
SCALE_DTYPES = (*FLOATS, "F8_E8M0", "U8")
"""U8 holds powers of two too, as compressed-tensors stores those of MXFP8."""
GPTQ_WIDTHS = (2, 4, 8)
"""Supported bits. Three bits do not divide a word, and libraries pack them differently."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output stored in each half byte of an AWQ word, lowest first."""


@dataclass(frozen=True)
class ScaledWeight(QuantizedWeight):
    """A weight [outputs, inputs] of integers or fp8 with scales."""

    # Bits of a packed number; 8 if the numbers are not packed.
    bits: int = 8
    # Rows and columns that share a scale.
    block: tuple[int, int] = (1, 1)
    # Added to a stored zero point.
    shift: int = 0
    # Eight rows share a row of words, in AWQ's order.
    interleaved: bool = False
    # The stored scale is divided by this.
    steps: int = 1

    @property
    def weight(self) -> TensorLayout:
        """The tensor that holds the numbers."""
        return self.parts["weight_packed"] if "weight_packed" in self.parts else self.parts["weight"]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that holds the numbers."""
        return self.weight.nbytes

    def dequantize_rows(self, files: TensorFiles, begin: int, end: int) -> DequantizedRows:
        """Return rows [begin, end) of the weight. Raises as the base class says."""
        import numpy as np

        scale = self._scales(files, begin, end)
        if self.weight.dtype == "F8_E4M3":
            numbers = files.read_numbers(self.weight.cut(0, begin, end))
            # numbers = m × 2^exponent with m in [0.5, 1)
            _, exponent = np.frexp(numbers)
            finest = np.where(numbers == 0, -9, np.maximum(exponent - 4, -9))
            step = np.ldexp(np.float32(1), finest).astype(np.float32)
            step *= np.abs(scale)
            return DequantizedRows(numbers * scale, step, step)
        codes = self._read_codes(files, (begin, end), (0, self.shape[1]))
        if "weight_zero_point" in self.parts:
            codes = codes - self._zero_points(files, begin, end)
        numbers = codes.astype(np.float32) * scale
        grid = np.broadcast_to(np.abs(scale), numbers.shape)
        return DequantizedRows(numbers, grid, grid, grid * 2**self.bits if "weight_zero_point" in self.parts else None)

    def read_codes(
        self, files: TensorFiles, rows: tuple[int, int], columns: tuple[int, int]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[Any]]:
        """Return the integers of a block, their zero points in a shape that broadcasts to it, and the group of each column.

        rows, columns: [begin, end) of the weight; the columns begin and end at a multiple of 32 numbers, or at the last one.
        Both are signed: of packed numbers 2^(bits - 1) is subtracted. Raises as `dequantize_rows`.
        """
        import numpy as np

        zeros: NDArray[np.int32] = np.zeros((1, 1), np.int32)
        if "weight_zero_point" in self.parts:
            zeros = self._zero_points(files, *rows)
        if zeros.shape[1] > 1:
            zeros = zeros[:, columns[0] : columns[1]]
        groups = self._group_of_columns(files)[columns[0] : columns[1]]
        return self._read_codes(files, rows, columns), zeros, groups

    def _read_codes(self, files: TensorFiles, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.int32]:
        """Return the signed integers of the rows [begin, end) and columns [begin, end)."""
        import numpy as np

        (begin, end), (first, last) = rows, columns
        if self.interleaved:
            raw = files.read_tensor(self.weight.cut(0, begin // 8, -(-end // 8)).cut(1, first, last))
            return unpack_awq(raw)[begin % 8 :][: end - begin]
        block = self.weight.cut(0, begin, end)
        if self.bits == 8 and self.weight.itemsize == 1:
            return files.read_tensor(block.cut(1, first, last)).view(np.int8).astype(np.int32)
        raw = files.read_tensor(block.cut(1, first * self.bits // 32, -(-last * self.bits // 32)))
        return unpack_bits(raw, self.bits, last - first)

    def _group_of_columns(self, files: TensorFiles) -> NDArray[Any]:
        """Return the index of the group of each column."""
        import numpy as np

        if "weight_g_idx" in self.parts:
            return files.read_tensor(self.parts["weight_g_idx"]).view(np.int32).clip(0)
        return np.arange(self.shape[1]) // self.block[1]

    def _scales(self, files: TensorFiles, begin: int, end: int) -> NDArray[np.float32]:
        """Return the scales of these rows, in a shape that broadcasts to [rows, columns]."""
        import numpy as np

        layout = next(self.parts[role] for role in SCALES if role in self.parts)
        dtype = "F8_E8M0" if layout.dtype == "U8" else layout.dtype
        values: NDArray[np.float32] = np.divide(
            files.read_numbers(layout, dtype), np.float32(self.steps), dtype=np.float32
        )
        grid = values.reshape(1, 1) if values.size == 1 else values.reshape(values.shape[0], -1)
        if grid.shape[0] > 1:
            grid = grid[np.arange(begin, end) // self.block[0]]
        if grid.shape[1] > 1:
            grid = grid[:, self._group_of_columns(files)]
        return grid

    def _zero_points(self, files: TensorFiles, begin: int, end: int) -> NDArray[np.int32]:
        import numpy as np

        layout = self.parts["weight_zero_point"]
        outputs, groups = self.shape[0], -(-self.shape[1] // self.block[1])
        if self.interleaved:
            low = begin // 8 * 8
            grid = unpack_awq(files.read_tensor(layout.cut(0, low // 8, -(-end // 8))))
            whole = (8 * layout.shape[0], layout.shape[1])
        elif layout.dtype == "I32":
            low = begin // 32 * 32
            whole = (min(layout.shape[0] * 32 // self.bits, outputs), layout.shape[1])
            words = files.read_tensor(layout.cut(0, low * self.bits // 32, -(-end * self.bits // 32)))
            grid = unpack_bits(np.ascontiguousarray(words.T), self.bits, end - low).T
        else:
            low, raw = 0, files.read_tensor(layout)
            grid = raw.view(np.int8).astype(np.int32).reshape((raw.shape[0], -1) if raw.size > 1 else (1, 1))
            whole = grid.shape
        if whole[0] not in (1, outputs) or whole[1] not in (1, groups):
            raise ValueError("the zero points do not fit the weight")
        if self.shift:
            half = 1 << (self.bits - 1)
            grid = (grid + half + self.shift) % (2 * half) - half
        if whole[0] > 1:
            grid = grid[begin - low : end - low]
        return grid[:, self._group_of_columns(files)] if grid.shape[1] > 1 else grid


def unpack_bits(words: NDArray[Any], bits: int, columns: int) -> NDArray[np.int32]:
    """Return the signed numbers that rows of 32-bit words hold, `bits` each, lowest bits first."""
    import numpy as np

    half = 1 << (bits - 1)
    if 32 % bits == 0:
        places = np.arange(0, 32, bits, dtype=np.uint32)
        numbers = (words.view(np.uint32)[:, :, None] >> places) & np.uint32(2 * half - 1)
        return numbers.reshape(len(words), -1)[:, :columns].astype(np.int32) - half
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    fields = stream[:, : columns * bits].reshape(words.shape[0], columns, bits)
    weights = (1 << np.arange(bits)).astype(np.int32)
    return (fields @ weights).astype(np.int32) - half


def unpack_awq(words: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers minus 8 that AWQ's words [outputs / 8, columns] hold, as [outputs, columns]."""
    import numpy as np

    numbers = np.empty((len(words), 8, words.shape[1]), np.int32)
    for place, output in enumerate(AWQ_ORDER):
        numbers[:, output] = (words.view(np.uint32) >> np.uint32(4 * place)) & np.uint32(15)
    return numbers.reshape(-1, words.shape[1]) - 8


def build_scaled_weight(
    ckpt: Checkpoint, quantization: Quantization, layouts: Mapping[str, TensorLayout], names: tuple[str, ...]
) -> ScaledWeight | None:
    """Return the weight that a module's tensors form; None if they have none of these formats. layouts: role → tensor."""
    if quantization.method in ("gptq", "awq"):
        return _build_transposed_weight(quantization, layouts, names)
    packed, weight = layouts.get("weight_packed"), layouts.get("weight")
    layout = packed or weight
    if layout is None or len(layout.shape) != 2:
        return None
    shape = (layout.shape[0], layout.shape[1])
    if quantization.method == "bitsandbytes":
        largest = layouts.get("SCB")
        if layout.dtype != "I8" or largest is None or largest.dtype not in FLOATS or largest.shape != shape[:1]:
            return None
        return ScaledWeight(names, shape, {"weight": layout, "weight_scale": largest}, block=(1, shape[1]), steps=127)
    scale = next((layouts[role] for role in SCALES if role in layouts), None)
    if scale is None or scale.dtype not in SCALE_DTYPES:
        return None
    bits = 8
    if packed is not None:
        columns = _read_column_count(ckpt, layouts["weight_shape"]) if "weight_shape" in layouts else None
        known = {scheme.weights.bits for scheme in quantization.schemes if scheme.weights is not None}
        choices = {
            width
            for width in known
            if width and columns and 1 <= width <= 8 and -(-columns * width // 32) == layout.shape[1]
        }
        if layout.dtype != "I32" or columns is None or len(choices) != 1:
            return None
        bits, shape = choices.pop(), (layout.shape[0], columns)
    elif layout.dtype not in ("I8", "F8_E4M3"):
        return None
    block = _infer_block(quantization, scale, shape)
    return ScaledWeight(names, shape, layouts, bits, block) if block is not None else None


def _build_transposed_weight(
    quantization: Quantization, layouts: Mapping[str, TensorLayout], names: tuple[str, ...]
) -> ScaledWeight | None:
    """Return a weight of GPTQ or AWQ; None if the shapes of its tensors do not fit each other."""
    is_awq = quantization.method == "awq"
    weight, zeros, scales, index = (layouts.get(role) for role in ("qweight", "qzeros", "scales", "g_idx"))
    if weight is None or zeros is None or scales is None or weight.dtype != "I32" or zeros.dtype != "I32":
        return None
    if any(len(layout.shape) != 2 or not all(layout.shape) for layout in (weight, zeros, scales)):
        return None
    groups, outputs = scales.shape
    bits = zeros.shape[1] * 32 // outputs
    if bits not in ((4,) if is_awq else GPTQ_WIDTHS) or zeros.shape != (groups, outputs * bits // 32):
        return None
    inputs = weight.shape[0] if is_awq else weight.shape[0] * 32 // bits
    if weight.shape[1] != (outputs * bits // 32 if is_awq else outputs):
        return None
    if inputs % groups or (index is not None and (index.shape != (inputs,) or index.dtype != "I32")):
        return None
    parts = {
        "weight_packed": weight.transpose(),
        "weight_scale": scales.transpose(),
        "weight_zero_point": zeros.transpose(),
        **({"weight_g_idx": index} if index is not None else {}),
    }
    shift = 0 if is_awq or quantization.config.get("checkpoint_format") == "gptq_v2" else 1
    return ScaledWeight(names, (outputs, inputs), parts, bits, (1, inputs // groups), shift, is_awq)


def _infer_block(quantization: Quantization, scale: TensorLayout, shape: tuple[int, int]) -> tuple[int, int] | None:
    """Return how many rows and columns share a scale; None if the shapes do not say."""
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


def _read_column_count(ckpt: Checkpoint, layout: TensorLayout) -> int | None:
    """Return the number of columns stored in a `weight_shape` tensor; None if it is unreadable."""
    if prod(layout.shape) != 2 or layout.itemsize not in (4, 8):
        return None
    chunk = layout.chunks[0]
    try:
        raw = ckpt.source.read(chunk.file, chunk.offset, layout.nbytes)
    except OSError:
        return None
    value = int.from_bytes(raw[layout.itemsize :], "little")
    return value if 0 < value < 1 << 31 else None
