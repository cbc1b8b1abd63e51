"""What is there by itself: zeros, NaN, one number, memory that was never written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.rounding import ROUNDED, encode
from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import PIECE, pieces
from ckptcheck.values.dtypes import FORMATS, decode

FAR = 1e6
"""How far outside the expected magnitudes memory that was never written must reach, on both ends."""


def is_zero(dtype: str, patterns: NDArray[Any]) -> bool:
    """Whether all elements are 0 or -0."""
    form = FORMATS.get(dtype)
    keep = ~np.array(form.sign if form else 0, patterns.dtype)
    return not (patterns & keep).any()


def content(dtype: str, patterns: NDArray[Any]) -> tuple[str, str] | None:
    """Name the one thing that all elements are: code and words, None where they are various."""
    if patterns.size == 0:
        return None
    first = patterns.reshape(-1)[:1]
    if _all(patterns, lambda part: is_zero(dtype, part)):
        return "zero", "zero"
    if dtype in ROUNDED and _all(patterns, lambda part: bool(np.isnan(decode(dtype, part)).all())):
        return "nan", "NaN"
    if patterns.size > 1 and _all(patterns, lambda part: bool((part == first).all())):
        if dtype not in ROUNDED:
            return "constant", "one and the same pattern"
        return "constant", f"the constant {decode(dtype, first)[0]:g}"
    return None


def instead(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> tuple[str, str] | None:
    """Name what all elements are; not where only the signs of zeros, or the bits of NaN, are others than expected."""
    found = content(dtype, actual)
    before = content(dtype, expected) if found is not None and found[0] in ("zero", "nan") else None
    return found if before is None or found is None or before[0] != found[0] else None


def _all(patterns: NDArray[Any], holds: Callable[[NDArray[Any]], bool]) -> bool:
    """Whether something holds for all elements; a few are looked at first, then piece after piece."""
    flat = patterns.reshape(-1)
    return holds(flat[:64]) and all(holds(flat[start : start + PIECE]) for start in range(0, flat.size, PIECE))


def whole(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Zero, NaN or constant throughout."""
    found = instead(dtype, expected, actual)
    return Cause(found[0], f"every element is {found[1]}") if found is not None else None


def holes(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """NaN in places, and equal otherwise."""
    if dtype not in ROUNDED:
        return None
    number = 0
    for low, high in pieces((actual.shape[0], actual.shape[1])):
        differs = actual[low:high] != expected[low:high]
        if not np.isnan(decode(dtype, actual[low:high][differs])).all():
            return None
        number += int(np.count_nonzero(differs))
    text = f"elements are NaN that should be numbers ({number:,} of {actual.size:,} in one tensor)"
    return Cause("nan", text, group="some")


def never_written(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Whether it looks like memory that nobody wrote: magnitudes of random bits, absurdly large and absurdly small ones.

    Random bits of F32 and BF16 have every exponent alike. Nothing can reproduce them, so this is only likely.
    """
    if dtype not in ("F64", "F32", "BF16") or actual.size < 64:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(decode(dtype, actual.ravel()[: 1 << 20])).astype(np.float64)
        usual = np.abs(decode(dtype, expected.ravel()[: 1 << 20])).astype(np.float64)
    usual = usual[np.isfinite(usual) & (usual > 0)]
    if not usual.size:
        return None
    large = np.count_nonzero(~(size <= usual.max() * FAR)) / size.size
    small = np.count_nonzero((size > 0) & (size < usual.min() / FAR)) / size.size
    if min(large, small) < 0.02:
        return None
    return Cause("uninitialised", "looks like memory that was never written (absurd magnitudes)", "likely")


def survives(bits: Bits, dtype: str) -> bool:
    """Whether a cast to a dtype and back keeps every element."""
    return all(
        np.array_equal(encode(bits.dtype, decode(dtype, encode(dtype, decode(bits.dtype, part)))), part)
        for low, high in pieces((bits.matrix.shape[0], bits.matrix.shape[1]))
        for part in (np.ascontiguousarray(bits.matrix[low:high]),)
    )
