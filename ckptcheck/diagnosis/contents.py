"""What is there by itself: zeros, NaN, one number, memory that was never written."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.rounding import ROUNDED, encode
from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import pieces
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
    if is_zero(dtype, patterns):
        return "zero", "zero"
    if (
        dtype in ROUNDED
        and np.isnan(decode(dtype, patterns.ravel()[:1]))[0]
        and np.isnan(decode(dtype, patterns)).all()
    ):
        return "nan", "NaN"
    if patterns.size > 1 and (patterns == patterns.ravel()[0]).all():
        if dtype not in ROUNDED:
            return "constant", "one and the same pattern"
        return "constant", f"the constant {decode(dtype, patterns.ravel()[:1])[0]:g}"
    return None


def whole(dtype: str, actual: NDArray[Any]) -> Cause | None:
    """Zero, NaN or constant throughout."""
    found = content(dtype, actual)
    return Cause(found[0], f"every element is {found[1]}") if found is not None else None


def holes(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """NaN in places, and equal otherwise."""
    if dtype not in ROUNDED:
        return None
    odd = np.isnan(decode(dtype, actual)) & (actual != expected)
    if (number := int(np.count_nonzero(odd))) and np.array_equal(actual[~odd], expected[~odd]):
        return Cause(
            "nan",
            f"elements are NaN that should be numbers ({number:,} of {actual.size:,} in one tensor)",
            group="some",
        )
    return None


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
    return Cause("uninitialised", "it looks like memory that was never written (absurd magnitudes)", "likely")


def survives(bits: Bits, dtype: str) -> bool:
    """Whether a cast to a dtype and back keeps every element."""
    return all(
        np.array_equal(encode(bits.dtype, decode(dtype, encode(dtype, decode(bits.dtype, part)))), part)
        for low, high in pieces((bits.matrix.shape[0], bits.matrix.shape[1]))
        for part in (np.ascontiguousarray(bits.matrix[low:high]),)
    )
