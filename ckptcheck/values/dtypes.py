"""How each dtype of safetensors spells a number, as far as a scan has to know.

For any sign-magnitude float the largest of the bits without their sign tells it all: the largest magnitude, and, since
Inf and NaN have the largest exponents, whether either is there.

Sources: IEEE 754; OCP 8-bit Floating Point Specification 1.0 (E4M3 has no Inf, E5M2 has); OCP Microscaling Formats 1.0
(E8M0: a power of two, 0xFF is NaN; F4 and F6 have neither); the FNUZ variants have one NaN, the pattern of minus zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Format:
    """bits of an element; unsigned: numpy's view of it.

    limit: the first pattern (without sign) that is not finite, None where all are. infinity: the pattern of Inf, None where
    there is none. fnuz: the one NaN is the pattern of minus zero. signed: the top bit is a sign. packed: elements share bytes.
    """

    bits: int
    unsigned: str
    limit: int | None = None
    infinity: int | None = None
    fnuz: bool = False
    signed: bool = True
    packed: bool = False
    integer: bool = False

    @property
    def sign(self) -> int:
        """The sign bit, 0 where there is none."""
        return 1 << (self.bits - 1) if self.signed and not self.integer else 0


FORMATS = {
    "F64": Format(64, "<u8", limit=0x7FF0 << 48, infinity=0x7FF0 << 48),
    "F32": Format(32, "<u4", limit=0x7F80 << 16, infinity=0x7F80 << 16),
    "C64": Format(32, "<u4", limit=0x7F80 << 16, infinity=0x7F80 << 16),
    "F16": Format(16, "<u2", limit=0x7C00, infinity=0x7C00),
    "BF16": Format(16, "<u2", limit=0x7F80, infinity=0x7F80),
    "F8_E5M2": Format(8, "u1", limit=0x7C, infinity=0x7C),
    "F8_E4M3": Format(8, "u1", limit=0x7F),
    "F8_E8M0": Format(8, "u1", limit=0xFF, signed=False),
    "F8_E4M3FNUZ": Format(8, "u1", fnuz=True),
    "F8_E5M2FNUZ": Format(8, "u1", fnuz=True),
    "F4": Format(8, "u1", signed=False, packed=True),
    "F6_E2M3": Format(8, "u1", signed=False, packed=True),
    "F6_E3M2": Format(8, "u1", signed=False, packed=True),
    "BOOL": Format(8, "u1", integer=True),
    **{f"U{bits}": Format(bits, f"<u{bits // 8}", integer=True) for bits in (8, 16, 32, 64)},
    **{f"I{bits}": Format(bits, f"<u{bits // 8}", integer=True) for bits in (8, 16, 32, 64)},
}
"""dtype → format. C64 is looked at as pairs of F32."""


def magnitude(dtype: str, pattern: int) -> float:
    """Return the number that a pattern without sign stands for; Inf and NaN as such. Packed and integer dtypes: the pattern."""
    import numpy as np

    form = FORMATS[dtype]
    if form.integer or form.packed:
        return float(pattern)
    return float(decode(dtype, np.array([pattern], form.unsigned))[0])


def decode(dtype: str, patterns: NDArray[Any]) -> NDArray[Any]:
    """Turn patterns (as unsigned integers) into float32, float64 for F64; for integers and packed dtypes the patterns as floats."""
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
        with np.errstate(invalid="ignore"):  # a signalling NaN is no reason to warn
            narrow: NDArray[Any] = values.astype(np.float32) if form.bits == 16 else values
        return narrow
    looked_up: NDArray[Any] = _table(dtype)[patterns]
    return looked_up


@cache
def _table(dtype: str) -> NDArray[np.float32]:
    """All 256 values of an 8-bit float, computed from its definition."""
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
