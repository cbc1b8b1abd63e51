"""Rounds numbers to a dtype as casts do: to the nearest number, ties to even."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS, decode

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


def _round_to_8_bits(dtype: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    numbers, borders = _number_grid(dtype)
    size = np.abs(values)
    index = np.searchsorted(borders, size, side="left")
    on_border = index < len(borders)
    on_border[on_border] &= borders[index[on_border]] == size[on_border]
    # A tie goes to the even pattern.
    index = np.where(on_border & (index % 2 == 1), index + 1, index)
    limit = FORMATS[dtype].limit or 0
    top = len(numbers) - 1 if dtype == "F8_E4M3" else limit
    index = np.where(np.isnan(size), 0x7F, np.minimum(index, top)).astype(np.uint8)
    return (index | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))).astype(np.uint8)


@cache
def _number_grid(dtype: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the finite numbers of an 8-bit float from zero up, and the midpoints between neighbours."""
    limit = FORMATS[dtype].limit or 0
    numbers = decode(dtype, np.arange(limit, dtype=np.uint8)).astype(np.float64)
    borders = (numbers[1:] + numbers[:-1]) / 2
    if dtype == "F8_E5M2":
        # From here on the result is Inf.
        borders = np.append(borders, 61440.0)
    return numbers, borders
