"""Detects tensors that were quantized and dequantized: int8, int4 or scaled FP8, per tensor, row, group or block.

The scales follow the usual recipe of compressed-tensors, AutoGPTQ and DeepSeek: the largest magnitude of the group divided by
the largest number of the format. Scales that a search chose (GPTQ with error feedback, AWQ, MSE) cannot be reproduced.
"""

from __future__ import annotations

import numpy as np

from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import CHUNK_ELEMENTS, row_ranges
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.compare.matching.cast import encode
from ckptcheck.values.dtypes import decode, decode_float64

SAMPLE_ROWS = 128
"""Rows that are compared before the whole tensor."""
KINDS: dict[str, float] = {"int8": 127, "int4": 7, "fp8 (e4m3)": 448}
"""Number format → its largest number."""


def find_quantization(pair: MatrixPair) -> Cause | None:
    """Find the grid to which the expected tensor must be rounded to give the actual one."""
    rows, columns = pair.actual.shape
    if not pair.is_float or pair.is_vector or columns < 16:
        return None
    for words, height, width in _groups(rows, columns):
        sample_rows = min(rows, height if 1 < height < rows else SAMPLE_ROWS)
        for kind, top in KINDS.items():
            if _reproduces(pair, kind, top, height, width, sample_rows) and _reproduces(
                pair, kind, top, height, width, rows
            ):
                return Cause("quantized", f"quantized to {kind} with one scale per {words}, and back", "rounded")
    return None


def _groups(rows: int, columns: int) -> list[tuple[str, int, int]]:
    groups = [("tensor", rows, columns), ("row", 1, columns)]
    if rows % 128 == 0 and columns % 128 == 0 and rows > 128:
        groups.append(("block of 128 x 128", 128, 128))
    return groups + [
        (f"group of {size}", 1, size) for size in (128, 64, 32, 16) if columns > size and columns % size == 0
    ]


def _reproduces(pair: MatrixPair, kind: str, top: float, height: int, width: int, until: int) -> bool:
    """Whether all but a few elements are reproduced; a scale with fewer digits decides some ties differently."""
    rows, columns = pair.actual.shape
    largest = _largest(pair) if height == rows else None
    step = height if 1 < height < rows else max(1, CHUNK_ELEMENTS // columns)
    changed = off = 0
    for start in range(0, until, step):
        stop = min(start + step, until)
        expected = decode_float64(pair.dtype, pair.expected[start:stop])
        actual = decode_float64(pair.dtype, pair.actual[start:stop])
        if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
            return False
        shape = (1, stop - start, 1, columns) if largest is not None else ((stop - start) // height, height, -1, width)
        grouped = expected.reshape(shape)
        most = np.abs(grouped).max(axis=(1, 3), keepdims=True) if largest is None else np.full((1, 1, 1, 1), largest)
        scale = np.where(most == 0, 1, most / top)
        steps = (
            decode("F8_E4M3", encode("F8_E4M3", grouped / scale))
            if kind.startswith("fp8")
            else np.rint(grouped / scale)
        )
        predicted = (steps * scale).reshape(expected.shape)
        # Half a unit of the dtype for the result, and the same again for a scale that was stored in it.
        slack = np.abs(predicted) * 2.0 ** -_digits(pair.dtype) * 1.5
        off += int(np.count_nonzero(np.abs(predicted - actual) > slack))
        changed += int(np.count_nonzero(pair.expected[start:stop] != pair.actual[start:stop]))
        if off > until * columns // 500:
            return False
    return bool(changed)


def _largest(pair: MatrixPair) -> float:
    """Return the largest expected magnitude."""
    ranges = row_ranges((pair.actual.shape[0], pair.actual.shape[1]))
    return max(float(np.abs(decode(pair.dtype, pair.expected[low:high])).max()) for low, high in ranges)


def _digits(dtype: str) -> int:
    """Return the binary digits of the significand, including the hidden one."""
    return {"F64": 20, "F32": 20, "F16": 11, "BF16": 8, "F8_E4M3": 4, "F8_E5M2": 3}[dtype]
