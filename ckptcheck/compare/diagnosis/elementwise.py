"""Causes that change every element in the same way: rounding, sign, byte order, another dtype, an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.matrix_view import Change, map_elements
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.compare.matching.cast import encode
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair

ROUND_TRIPS = {
    "F64": ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F32": ("F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F16": ("BF16", "F8_E4M3", "F8_E5M2"),
    "BF16": ("F16", "F8_E4M3", "F8_E5M2"),
}
NORM_OFFSETS = {-1: "1 is missing (zero-centred norm: w instead of 1 + w)", 1: "1 was added twice"}
"""What was added to a norm → how a sentence says it."""
DTYPE_WORDS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "fp8 (e4m3)", "F8_E5M2": "fp8 (e5m2)"}


def elementwise_changes(pair: MatrixPair) -> Iterator[Change]:
    """Yield all changes that apply to the dtype of the pair."""
    dtype = pair.dtype
    if dtype not in FORMATS or not pair.is_float:
        return
    sign = np.array(FORMATS[dtype].sign, FORMATS[dtype].unsigned)
    yield map_elements("sign", "the sign is flipped", lambda bits: bits ^ sign)
    if FORMATS[dtype].bits > 8:
        yield map_elements("byte-order", "the bytes of each element are in reverse order", lambda bits: bits.byteswap())
    for narrow in ROUND_TRIPS.get(dtype, ()):
        yield map_elements("round-trip", f"rounded to {DTYPE_WORDS[narrow]} and back", _round_trip(dtype, narrow))
    if dtype == "F32":
        upper_half = np.uint32(0xFFFF0000)
        yield map_elements("round-trip", "cut to bf16 (not rounded) and back", lambda bits: bits & upper_half)
    other = {"F16": "BF16", "BF16": "F16", "F8_E4M3": "F8_E5M2", "F8_E5M2": "F8_E4M3"}.get(dtype)
    if other is not None:
        yield map_elements(
            "misread", f"the bits are those of {DTYPE_WORDS[other]}, read as {DTYPE_WORDS[dtype]}",
            lambda bits: encode(other, decode(dtype, bits)),
        )  # fmt: skip
    if pair.part == "norm":
        for step, text in NORM_OFFSETS.items():
            yield map_elements("norm-offset", text, _add_offset(dtype, step), "rounded")


def _round_trip(dtype: str, narrow: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda bits: encode(dtype, decode(narrow, encode(narrow, decode(dtype, bits))))


def _add_offset(dtype: str, step: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda bits: encode(dtype, decode(dtype, bits) + np.float32(step))


def find_norm_offset(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find a zero-centred norm whose 1 is missing or added twice: adding it back to the actual norm gives the expected one."""
    step = 1 if np.median(decode(dtype, actual)) < np.median(decode(dtype, expected)) else -1
    with np.errstate(invalid="ignore"):
        predicted = _add_offset(dtype, step)(actual)
    return Cause("norm-offset", NORM_OFFSETS[-step], "rounded") if np.array_equal(predicted, expected) else None
