"""Rounded to the grid of a quantization and back: int8, int4 or scaled FP8, per tensor, row, group or block.

The scales are those of the usual recipe: the largest magnitude of the group over the largest number of the format
(compressed-tensors, AutoGPTQ and DeepSeek alike). Scales found by a search (GPTQ with error feedback, AWQ, MSE) are not
reproduced; then only the grid itself can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.rounding import encode
from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import PIECE, pieces
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

Floats = NDArray[np.float64]
TRIED = 128
"""Rows that are looked at before the whole is."""
KINDS: dict[str, float] = {"int8": 127, "int4": 7, "fp8 (e4m3)": 448}
"""Number format → its largest number."""


def quantized(unit: Unit) -> Cause | None:
    """Say onto which grid what was expected has to be rounded to give what was found."""
    rows, columns = unit.actual.shape
    if not unit.numeric or unit.flat or columns < 16:
        return None
    for words, height, width in _groups(rows, columns):
        tried = min(rows, height if 1 < height < rows else TRIED)
        for kind, top in KINDS.items():
            if _reproduces(unit, kind, top, height, width, tried) and _reproduces(unit, kind, top, height, width, rows):
                return Cause("quantized", f"quantized to {kind} with one scale per {words}, and back", "rounded")
    return None


def _groups(rows: int, columns: int) -> list[tuple[str, int, int]]:
    found = [("tensor", rows, columns), ("row", 1, columns)]
    if rows % 128 == 0 and columns % 128 == 0 and rows > 128:
        found.append(("block of 128 x 128", 128, 128))
    return found + [
        (f"group of {size}", 1, size) for size in (128, 64, 32, 16) if columns > size and columns % size == 0
    ]


def _reproduces(unit: Unit, kind: str, top: float, height: int, width: int, until: int) -> bool:
    """Whether all but a few elements (ties that a scale of fewer digits decides otherwise) come out right."""
    rows, columns = unit.actual.shape
    largest = _largest(unit) if height == rows else None
    step = height if 1 < height < rows else max(1, PIECE // columns)
    changed = off = 0
    for start in range(0, until, step):
        stop = min(start + step, until)
        expected = decode(unit.dtype, unit.expected[start:stop]).astype(np.float64)
        actual = decode(unit.dtype, unit.actual[start:stop]).astype(np.float64)
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
        slack = np.abs(predicted) * 2.0 ** -_digits(unit.dtype) * 1.5
        off += int(np.count_nonzero(np.abs(predicted - actual) > slack))
        changed += int(np.count_nonzero(unit.expected[start:stop] != unit.actual[start:stop]))
        if off > until * columns // 500:
            return False
    return bool(changed)


def _largest(unit: Unit) -> float:
    """The largest magnitude that was expected."""
    ranges = pieces((unit.actual.shape[0], unit.actual.shape[1]))
    return max(float(np.abs(decode(unit.dtype, unit.expected[low:high])).max()) for low, high in ranges)


def _digits(dtype: str) -> int:
    """Binary digits of a significand, the hidden one included."""
    return {"F64": 20, "F32": 20, "F16": 11, "BF16": 8, "F8_E4M3": 4, "F8_E5M2": 3}[dtype]


def other_grid(unit: Unit) -> Cause | None:
    """Say that both sides lie on grids of 4 bits, but on different ones: other scales, groups or zero points.

    Both must be within half a step of what lay between them, so the numbers are the same model's.
    """
    if not unit.numeric or unit.flat:
        return None
    rows = slice(0, TRIED)
    expected, actual = (decode(unit.dtype, side[rows]).astype(np.float64) for side in (unit.expected, unit.actual))
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return None
    was, now = _grid(expected, unit.dtype), _grid(actual, unit.dtype)
    if was is None or now is None:
        return None
    slack = (was[1] + now[1]) / 2 * 1.02
    if np.count_nonzero(np.abs(expected - actual) > slack) > actual.size // 500:
        return None
    text = f"both sides lie on a 4-bit grid, but with different scales (expected {was[0]}, found {now[0]})"
    return Cause("grid", text, "rounded")


def _grid(values: Floats, dtype: str) -> tuple[str, Floats] | None:
    """Find the largest groups in which all numbers are multiples -8…8 of one step; return words and the step at each element."""
    rows, columns = values.shape
    for words, height, width in _groups(rows, columns):
        if height != 1:
            continue
        grouped = values.reshape(rows, -1, width)
        largest = np.abs(grouped).max(axis=2, keepdims=True)
        for top in (7, 8):
            step = np.where(largest == 0, 1, largest / top)
            ratio = grouped / step
            if (
                np.abs(ratio - np.rint(ratio)) <= np.maximum(np.abs(ratio), 1) * 2.0 ** (1 - _digits(dtype))
            ).mean() > 0.998:
                return f"one per {words}", np.broadcast_to(step, grouped.shape).reshape(values.shape)
    return None
