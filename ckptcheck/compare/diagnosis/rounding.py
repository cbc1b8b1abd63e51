"""Rounds numbers to a dtype as casts do: to the nearest number, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUNDED = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""dtypes that `encode` can round to."""


def encode(dtype: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the patterns of float values in one of ROUNDED. 8-bit floats saturate E4M3 and overflow E5M2, as torch does."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype == "F64":
            return np.ascontiguousarray(values, np.float64).view(np.uint64)
        single = np.ascontiguousarray(values, np.float32)
        if dtype == "F32":
            return single.view(np.uint32)
        if dtype == "F16":
            return np.asarray(values).astype(np.float16).view(np.uint16)
        if dtype == "BF16":
            bits = single.view(np.uint32)
            rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
            return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
        return _round_to_8_bits(dtype, single)


EIGHT_BITS = {"F8_E4M3": (3, 7, 0x7E), "F8_E5M2": (2, 15, 0x7C)}
"""dtype → bits of its mantissa, bias of its exponent, and the pattern of what is too large: the largest number, or Inf."""


def _round_to_8_bits(dtype: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round by the bits of float32: the upper ones of a normal number are its pattern, but for the bias."""
    mantissa, bias, top = EIGHT_BITS[dtype]
    bits = values.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    dropped = np.uint32(23 - mantissa)
    half = np.uint32((1 << (22 - mantissa)) - 1)
    pattern = (size + half + ((size >> dropped) & np.uint32(1))) >> dropped
    smallest = np.float32(2.0 ** (1 - bias)).view(np.uint32)
    below = size < smallest
    pattern = np.maximum(pattern, np.uint32((127 - bias) << mantissa)) - np.uint32((127 - bias) << mantissa)
    if below.any():  # subnormal numbers have even steps
        steps = np.rint(np.abs(values[below]) * np.float32(2.0 ** (bias - 1 + mantissa)))
        pattern[below] = steps.astype(np.uint32)
    pattern = np.minimum(pattern, np.uint32(top)).astype(np.uint8)
    pattern[size > np.uint32(0x7F800000)] = 0x7F  # not a number
    signed: NDArray[np.uint8] = pattern | (bits >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80)
    return signed
