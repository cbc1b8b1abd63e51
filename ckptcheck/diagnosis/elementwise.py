"""Changes that every element suffers alike: rounded and widened again, sign, byte order, read as another dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.rounding import encode
from ckptcheck.diagnosis.verdict import Confidence
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit

Change = Callable[[NDArray[Any]], NDArray[Any]]
ROUND_TRIPS = {
    "F64": ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F32": ("F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F16": ("BF16", "F8_E4M3", "F8_E5M2"),
    "BF16": ("F16", "F8_E4M3", "F8_E5M2"),
}
SPOKEN = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "fp8 (e4m3)", "F8_E5M2": "fp8 (e5m2)"}


@dataclass(frozen=True)
class Elementwise:
    """change: patterns → patterns. code, text: the cause and how a sentence says it."""

    code: str
    text: str
    change: Change
    confidence: Confidence = "exact"


def changes(unit: Unit) -> Iterator[Elementwise]:
    """All that apply to the unit's dtype."""
    dtype = unit.dtype
    if dtype not in FORMATS or not unit.numeric:
        return
    sign = np.array(FORMATS[dtype].sign, FORMATS[dtype].unsigned)
    yield Elementwise("sign", "the sign is flipped", lambda bits: bits ^ sign)
    if FORMATS[dtype].bits > 8:
        yield Elementwise("byte-order", "the bytes of each element are in reverse order", lambda bits: bits.byteswap())
    for narrow in ROUND_TRIPS.get(dtype, ()):
        yield Elementwise("round-trip", f"rounded to {SPOKEN[narrow]} and back", _through(dtype, narrow))
    if dtype == "F32":
        kept = np.uint32(0xFFFF0000)
        yield Elementwise("round-trip", "cut to bf16 (not rounded) and back", lambda bits: bits & kept)
    other = {"F16": "BF16", "BF16": "F16", "F8_E4M3": "F8_E5M2", "F8_E5M2": "F8_E4M3"}.get(dtype)
    if other is not None:
        yield Elementwise(
            "misread", f"the bits are those of {SPOKEN[other]}, read as {SPOKEN[dtype]}",
            lambda bits: encode(other, decode(dtype, bits)),
        )  # fmt: skip
    if unit.part == "norm":
        for step, text in (
            (-1, "1 is missing (zero-centred norm: w instead of 1 + w)"),
            (1, "1 was added once too often"),
        ):
            yield Elementwise("norm-offset", text, _plus(dtype, step), "rounded")


def _through(dtype: str, narrow: str) -> Change:
    return lambda bits: encode(dtype, decode(narrow, encode(narrow, decode(dtype, bits))))


def _plus(dtype: str, step: int) -> Change:
    return lambda bits: encode(dtype, decode(dtype, bits) + np.float32(step))


def off_by_one(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Elementwise | None:
    """A zero-centred norm whose 1 is missing, seen from the side with fewer digits: what was found plus 1 is what was expected."""
    step = 1 if np.median(decode(dtype, actual)) < np.median(decode(dtype, expected)) else -1
    with np.errstate(invalid="ignore"):
        predicted = encode(dtype, decode(dtype, actual) + np.float32(step))
    if not np.array_equal(predicted, expected):
        return None
    text = "1 is missing (zero-centred norm: w instead of 1 + w)" if step == 1 else "1 was added once too often"
    return Elementwise("norm-offset", text, lambda bits: bits, "rounded")
