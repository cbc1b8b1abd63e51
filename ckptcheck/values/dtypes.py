"""Describes how each dtype of safetensors encodes a number, as far as a scan needs it.

In any sign-magnitude float, the largest pattern without its sign answers both questions of a scan: it is the largest
magnitude, and because Inf and NaN have the largest exponents, it shows whether there is either.

Sources: IEEE 754; OCP 8-bit Floating Point Specification 1.0 (E4M3 has no Inf, E5M2 has); OCP Microscaling Formats 1.0
(E8M0: a power of two, 0xFF is NaN; F4 and F6 have neither); the FNUZ variants have one NaN, the pattern of minus zero.

8-bit floats are decoded with tables of 256 numbers that this module computes, and not with the package `ml_dtypes`. Both give
the same bits for every pattern. On random bytes (64 Ki and 4 Mi elements, ml_dtypes 0.6.0, numpy 2.4.6) `ml_dtypes` takes 3.0 to
3.8 times as long for E4M3, E5M2 and their FNUZ variants, 1.8 times for E2M1, and 0.5 to 0.8 times for E8M0 and BF16, which are rare
or cheap. Only the tables could come from it. That would save twenty lines, and cost 7 to 19 ms of import in each scan that decodes
(a table takes 0.2 ms) and a compiled dependency of 1.8 MB.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NumberFormat(msgspec.Struct, frozen=True):
    """The encoding of one dtype."""

    bits: int
    """Bits of an element."""
    unsigned: str
    """The numpy dtype that shows the patterns as unsigned integers."""
    limit: int | None = None
    """The first pattern (without sign) that is not finite; None if all are finite."""
    infinity: int | None = None
    """The pattern of Inf; None without Inf."""
    fnuz: bool = False
    """Whether the only NaN is the pattern of minus zero."""
    signed: bool = True
    """Whether the top bit is a sign."""
    packed: bool = False
    """Whether several elements share a byte."""
    integer: bool = False

    @property
    def sign(self) -> int:
        """The sign bit, 0 if there is none."""
        return 1 << (self.bits - 1) if self.signed and not self.integer else 0


FORMATS = {
    "F64": NumberFormat(64, "<u8", limit=0x7FF0 << 48, infinity=0x7FF0 << 48),
    "F32": NumberFormat(32, "<u4", limit=0x7F80 << 16, infinity=0x7F80 << 16),
    "C64": NumberFormat(32, "<u4", limit=0x7F80 << 16, infinity=0x7F80 << 16),
    "F16": NumberFormat(16, "<u2", limit=0x7C00, infinity=0x7C00),
    "BF16": NumberFormat(16, "<u2", limit=0x7F80, infinity=0x7F80),
    "F8_E5M2": NumberFormat(8, "u1", limit=0x7C, infinity=0x7C),
    "F8_E4M3": NumberFormat(8, "u1", limit=0x7F),
    "F8_E8M0": NumberFormat(8, "u1", limit=0xFF, signed=False),
    "F8_E4M3FNUZ": NumberFormat(8, "u1", fnuz=True),
    "F8_E5M2FNUZ": NumberFormat(8, "u1", fnuz=True),
    "F4": NumberFormat(8, "u1", signed=False, packed=True),
    "F6_E2M3": NumberFormat(8, "u1", signed=False, packed=True),
    "F6_E3M2": NumberFormat(8, "u1", signed=False, packed=True),
    "BOOL": NumberFormat(8, "u1", integer=True),
    **{f"U{bits}": NumberFormat(bits, f"<u{bits // 8}", integer=True) for bits in (8, 16, 32, 64)},
    **{f"I{bits}": NumberFormat(bits, f"<u{bits // 8}", integer=True) for bits in (8, 16, 32, 64)},
}
"""dtype → its encoding. C64 is scanned as pairs of F32."""


@lru_cache(1 << 14)  # the largest magnitudes of the experts of a model are often the same
def decode_magnitude(dtype: str, pattern: int) -> float:
    """Return the number that a pattern without sign encodes, Inf and NaN included; for packed and integer dtypes the pattern."""
    import numpy as np

    form = FORMATS[dtype]
    if form.integer or form.packed:
        return float(pattern)
    return float(decode(dtype, np.array([pattern], form.unsigned))[0])


def decode(dtype: str, patterns: NDArray[Any]) -> NDArray[Any]:
    """Decode patterns (unsigned integers) to float32, or to float64 for F64. Integer and packed dtypes: the patterns as floats."""
    import numpy as np

    form = FORMATS[dtype]
    if form.integer or form.packed:
        signed = patterns.view(patterns.dtype.str.replace("u", "i")) if dtype.startswith("I") else patterns
        return signed.astype(np.float64 if form.bits > 16 else np.float32)
    if dtype == "BF16":
        widened: NDArray[np.uint32] = patterns.astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32)
    if dtype in ("F64", "F32", "C64", "F16"):
        values: NDArray[Any] = patterns.view({64: np.float64, 32: np.float32, 16: np.float16}[form.bits])
        # numpy would warn about a signalling NaN.
        with np.errstate(invalid="ignore"):
            decoded: NDArray[Any] = values.astype(np.float32) if form.bits == 16 else values
        return decoded
    numbers: NDArray[Any] = _float8_table(dtype)[patterns]
    return numbers


def decode_float64(dtype: str, patterns: NDArray[Any]) -> NDArray[np.float64]:
    """Decode patterns to float64. numpy would warn where it widens a signalling NaN, which stays a NaN."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        return decode(dtype, patterns).astype(np.float64)


@cache
def _float8_table(dtype: str) -> NDArray[np.float32]:
    """Compute all 256 values of an 8-bit float from its definition."""
    import numpy as np

    exponent_bits, mantissa_bits, bias = {
        "F8_E4M3": (4, 3, 7), "F8_E5M2": (5, 2, 15), "F8_E8M0": (8, 0, 127), "F8_E4M3FNUZ": (4, 3, 8), "F8_E5M2FNUZ": (5, 2, 16),
    }[dtype]  # fmt: skip
    table = np.zeros(256, np.float32)
    for pattern in range(256):
        if dtype == "F8_E8M0":
            table[pattern] = np.nan if pattern == 0xFF else np.float32(2.0 ** (pattern - bias))
            continue
        exponent = (pattern >> mantissa_bits) & ((1 << exponent_bits) - 1)
        mantissa = (pattern & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        value = mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias)
        table[pattern] = -value if pattern & 0x80 else value
    form = FORMATS[dtype]
    for pattern in range(256):
        bare = pattern & 0x7F
        if (form.fnuz and pattern == 0x80) or (form.limit is not None and dtype != "F8_E8M0" and bare >= form.limit):
            infinite = form.infinity is not None and bare == form.infinity
            table[pattern] = (np.inf if pattern < 0x80 else -np.inf) if infinite else np.nan
    return table
