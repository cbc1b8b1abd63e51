"""Detects tensors that were multiplied by a constant.

An element `a = round(c * e)` allows the factors between the borders of its rounding, divided by `e`. If the intervals of all
elements intersect, a constant in the intersection reproduces every bit. Noise of one unit in the last place leaves the
intersection empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import MatrixView, SamplePoints, row_ranges
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.values.dtypes import FORMATS, decode_float64

Floats = NDArray[np.float64]
MIN_ELEMENTS = 16
"""Nonzero elements that must agree on a factor."""


def factor_intervals(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the smallest and the largest factor that each element allows (float64); an empty interval if there is none.

    Where both are zero, every factor is allowed.
    """
    form = FORMATS[dtype]
    bare = actual & ~np.array(form.sign, actual.dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        e = decode_float64(dtype, expected)
        a = decode_float64(dtype, actual)
        below = decode_float64(dtype, np.where(bare > 0, bare - np.array(1, bare.dtype), bare))
        above = decode_float64(dtype, bare + np.array(1, bare.dtype))
        size = np.abs(a)
        inner, outer = np.where(bare > 0, (size + below) / 2, 0.0), (size + above) / 2
        backwards = np.sign(a) * np.sign(e)
        low, high = inner / np.abs(e), outer / np.abs(e)
        low, high = np.where(backwards < 0, -high, low), np.where(backwards < 0, -low, high)
        # The product fell below the smallest number.
        low = np.where((bare == 0) & (e != 0), -high, low)
        nothing = ~(np.isfinite(low) & np.isfinite(high)) | ((e == 0) & (bare > 0))
        free = (e == 0) & (bare == 0)
    low, high = np.where(nothing, np.inf, low), np.where(nothing, -np.inf, high)
    return np.where(free, -np.inf, low), np.where(free, np.inf, high)


def find_scale(pair: MatrixPair, view: MatrixView, sample: SamplePoints) -> Cause | None:
    """Find the constant by which the view was multiplied to give the actual tensor; None if there is none, or it is 1."""
    if not pair.is_float or pair.actual.size < MIN_ELEMENTS:
        return None
    low, high = factor_intervals(pair.dtype, view.pick(sample.rows, sample.columns), sample.actual)
    if not low.max() <= high.min():
        return None
    least, most, informative = -np.inf, np.inf, 0
    columns = np.arange(pair.actual.shape[1], dtype=np.int64)[None]
    for start, stop in row_ranges(view.shape):
        rows = np.arange(start, stop, dtype=np.int64)[:, None]
        low, high = factor_intervals(pair.dtype, view.pick(rows, columns), pair.actual[start:stop])
        least, most = max(least, low.max()), min(most, high.min())
        informative += int(np.count_nonzero(np.isfinite(low)))
        if not least <= most:
            return None
    if informative < MIN_ELEMENTS or least <= 1 <= most:
        return None
    return Cause("scaled", f"multiplied by {shortest_number(least, most)}", "rounded")


def shortest_number(low: float, high: float) -> str:
    """Return the shortest decimal number between two others, with at most six digits.

    >>> shortest_number(23.97, 24.02), shortest_number(0.1249, 0.1251), shortest_number(3.0003, 3.0004)
    ('24', '0.125', '3.0004')
    """
    middle = (low + high) / 2
    texts = (f"{middle:.{digits}g}" for digits in range(1, 7))
    return next((text for text in texts if low <= float(text) <= high), f"{middle:.6g}")


def find_group_scales(pair: MatrixPair) -> Cause | None:
    """Find whether each row, block or group was multiplied by a constant of its own, as with wrong quantization scales.

    Groups run along the columns, as in GPTQ, AWQ and compressed-tensors; blocks are 128 x 128, as in DeepSeek's FP8.
    """
    rows, columns = pair.actual.shape
    if not pair.is_float or columns < 32 or rows < 2:
        return None
    shapes = {
        f"each group of {size} columns": (1, size) for size in (128, 64, 32) if columns > size and columns % size == 0
    }
    shapes = {"each row": (1, columns), **shapes}
    if rows % 128 == 0 and columns % 128 == 0:
        shapes = {"each block of 128 x 128": (128, 128), **shapes}
    for words, (height, width) in shapes.items():
        if _have_group_factors(pair, min(4 * height, rows), height, width) and _have_group_factors(
            pair, rows, height, width
        ):
            return Cause(
                "scales", f"{words} was multiplied by a constant of its own (the scales of another tensor)", "rounded"
            )
    return None


def _have_group_factors(pair: MatrixPair, until: int, height: int, width: int) -> bool:
    """Whether every group has a factor, and not all of them may be 1."""
    step = max(height, (1 << 18) // pair.actual.shape[1] // height * height)
    changed = False
    for start in range(0, until, step):
        stop = min(start + step, until)
        low, high = factor_intervals(pair.dtype, pair.expected[start:stop], pair.actual[start:stop])
        shape = ((stop - start) // height, height, -1, width)
        least, most = low.reshape(shape).max((1, 3)), high.reshape(shape).min((1, 3))
        if not (least <= most).all():
            return False
        changed |= bool(((least > 1) | (most < 1)).any())
    return changed
