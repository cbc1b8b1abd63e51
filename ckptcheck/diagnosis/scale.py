"""Multiplied by a constant: the factors that each element allows, after rounding, have one in common.

An element `a` that came of `e` by `round(c * e)` allows the factors between the borders of its rounding, divided by `e`.
If all these intervals meet, the constant is there and every bit follows from it; noise of one unit in the last place
leaves nothing in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import Sample, View, pieces
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

Floats = NDArray[np.float64]
LEAST = 16
"""Elements other than zero that have to agree on a factor."""


def factors(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the least and the largest factor that each element allows (float64); an empty interval where there is none.

    Zero times anything is zero, so where both are zero every factor is allowed.
    """
    form = FORMATS[dtype]
    bare = actual & ~np.array(form.sign, actual.dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        e = decode(dtype, expected).astype(np.float64)
        a = decode(dtype, actual).astype(np.float64)
        below = decode(dtype, np.where(bare > 0, bare - np.array(1, bare.dtype), bare)).astype(np.float64)
        above = decode(dtype, bare + np.array(1, bare.dtype)).astype(np.float64)
        size = np.abs(a)
        inner, outer = np.where(bare > 0, (size + below) / 2, 0.0), (size + above) / 2
        backwards = np.sign(a) * np.sign(e)
        low, high = inner / np.abs(e), outer / np.abs(e)
        low, high = np.where(backwards < 0, -high, low), np.where(backwards < 0, -low, high)
        low = np.where((bare == 0) & (e != 0), -high, low)  # it fell below the smallest number
        nothing = ~(np.isfinite(low) & np.isfinite(high)) | ((e == 0) & (bare > 0))
        free = (e == 0) & (bare == 0)
    low, high = np.where(nothing, np.inf, low), np.where(nothing, -np.inf, high)
    return np.where(free, -np.inf, low), np.where(free, np.inf, high)


def scaled(unit: Unit, view: View, sample: Sample) -> Cause | None:
    """Say by which constant the view was multiplied to give what was found; None if by none, or by 1."""
    if not unit.numeric or unit.actual.size < LEAST:
        return None
    low, high = factors(unit.dtype, view.pick(sample.rows, sample.columns), sample.found)
    if not low.max() <= high.min():
        return None
    least, most, told = -np.inf, np.inf, 0
    columns = np.arange(unit.actual.shape[1], dtype=np.int64)[None]
    for start, stop in pieces(view.shape):
        rows = np.arange(start, stop, dtype=np.int64)[:, None]
        low, high = factors(unit.dtype, view.pick(rows, columns), unit.actual[start:stop])
        least, most = max(least, low.max()), min(most, high.min())
        told += int(np.count_nonzero(np.isfinite(low)))
        if not least <= most:
            return None
    if told < LEAST or least <= 1 <= most:
        return None
    return Cause("scaled", f"multiplied by {simplest(least, most)}", "rounded")


def simplest(low: float, high: float) -> str:
    """Write the shortest number between two others, six digits at most.

    >>> simplest(23.97, 24.02), simplest(0.1249, 0.1251), simplest(3.0003, 3.0004)
    ('24', '0.125', '3.0003')
    """
    middle = (low + high) / 2
    texts = (f"{middle:.{digits}g}" for digits in range(1, 7))
    return next((text for text in texts if low <= float(text) <= high), f"{middle:.6g}")


def scaled_in_groups(unit: Unit) -> Cause | None:
    """Say whether each row, block or group of a row was multiplied by a constant of its own: the scales of a quantization.

    Groups are along the columns, as GPTQ, AWQ and compressed-tensors lay them; blocks of 128 x 128 as DeepSeek's FP8.
    """
    rows, columns = unit.actual.shape
    if not unit.numeric or columns < 32 or rows < 2:
        return None
    shapes = {
        f"each group of {size} columns": (1, size) for size in (128, 64, 32) if columns > size and columns % size == 0
    }
    shapes = {"each row": (1, columns), **shapes}
    if rows % 128 == 0 and columns % 128 == 0:
        shapes = {"each block of 128 x 128": (128, 128), **shapes}
    for words, (height, width) in shapes.items():
        if _agree(unit, min(4 * height, rows), height, width) and _agree(unit, rows, height, width):
            return Cause("scales", f"{words} multiplied by a constant of its own (scales of something else)", "rounded")
    return None


def _agree(unit: Unit, until: int, height: int, width: int) -> bool:
    """Whether in each group there is a factor, and not everywhere may it be 1."""
    step = max(height, (1 << 18) // unit.actual.shape[1] // height * height)
    changed = False
    for start in range(0, until, step):
        stop = min(start + step, until)
        low, high = factors(unit.dtype, unit.expected[start:stop], unit.actual[start:stop])
        shape = ((stop - start) // height, height, -1, width)
        least, most = low.reshape(shape).max((1, 3)), high.reshape(shape).min((1, 3))
        if not (least <= most).all():
            return False
        changed |= bool(((least > 1) | (most < 1)).any())
    return changed
