"""Causes that change every element in the same way: rounding, sign, byte order, another dtype, an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.rounding import encode
from ckptcheck.compare.diagnosis.verdict import Confidence
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair

Change = Callable[[NDArray[Any]], NDArray[Any]]
ROUND_TRIPS = {
    "F64": ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F32": ("F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F16": ("BF16", "F8_E4M3", "F8_E5M2"),
    "BF16": ("F16", "F8_E4M3", "F8_E5M2"),
}
DTYPE_WORDS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "fp8 (e4m3)", "F8_E5M2": "fp8 (e5m2)"}


@dataclass(frozen=True)
class ElementwiseChange:
    """A cause that changes every element in the same way."""

    # The cause, and how a sentence says it.
    code: str
    text: str
    # Maps expected bit patterns to actual ones.
    change: Change
    confidence: Confidence = "exact"


def elementwise_changes(pair: MatrixPair) -> Iterator[ElementwiseChange]:
    """Yield all changes that apply to the dtype of the pair."""
    dtype = pair.dtype
    if dtype not in FORMATS or not pair.is_float:
        return
    sign = np.array(FORMATS[dtype].sign, FORMATS[dtype].unsigned)
    yield ElementwiseChange("sign", "the sign is flipped", lambda bits: bits ^ sign)
    if FORMATS[dtype].bits > 8:
        yield ElementwiseChange(
            "byte-order", "the bytes of each element are in reverse order", lambda bits: bits.byteswap()
        )
    for narrow in ROUND_TRIPS.get(dtype, ()):
        yield ElementwiseChange("round-trip", f"rounded to {DTYPE_WORDS[narrow]} and back", _round_trip(dtype, narrow))
    if dtype == "F32":
        upper_half = np.uint32(0xFFFF0000)
        yield ElementwiseChange("round-trip", "cut to bf16 (not rounded) and back", lambda bits: bits & upper_half)
    other = {"F16": "BF16", "BF16": "F16", "F8_E4M3": "F8_E5M2", "F8_E5M2": "F8_E4M3"}.get(dtype)
    if other is not None:
        yield ElementwiseChange(
            "misread", f"the bits are those of {DTYPE_WORDS[other]}, read as {DTYPE_WORDS[dtype]}",
            lambda bits: encode(other, decode(dtype, bits)),
        )  # fmt: skip
    if pair.part == "norm":
        for step, text in (
            (-1, "1 is missing (zero-centred norm: w instead of 1 + w)"),
            (1, "1 was added twice"),
        ):
            yield ElementwiseChange("norm-offset", text, _add_offset(dtype, step), "rounded")


def _round_trip(dtype: str, narrow: str) -> Change:
    return lambda bits: encode(dtype, decode(narrow, encode(narrow, decode(dtype, bits))))


def _add_offset(dtype: str, step: int) -> Change:
    return lambda bits: encode(dtype, decode(dtype, bits) + np.float32(step))


def find_norm_offset(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> ElementwiseChange | None:
    """Find a zero-centred norm whose 1 is missing or added twice: adding it back to the actual norm gives the expected one."""
    step = 1 if np.median(decode(dtype, actual)) < np.median(decode(dtype, expected)) else -1
    with np.errstate(invalid="ignore"):
        predicted = encode(dtype, decode(dtype, actual) + np.float32(step))
    if not np.array_equal(predicted, expected):
        return None
    text = "1 is missing (zero-centred norm: w instead of 1 + w)" if step == 1 else "1 was added twice"
    return ElementwiseChange("norm-offset", text, lambda bits: bits, "rounded")
