"""Casts bit patterns from one dtype to another as torch does: to the nearest number, ties to even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes that `cast_patterns` can cast to."""
ROUNDED = (*FLOATS, "F8_E4M3", "F8_E5M2")
"""dtypes that `encode` can round to."""
EIGHT_BITS = {"F8_E4M3": (3, 7, 0x7E), "F8_E5M2": (2, 15, 0x7C)}
"""dtype → bits of its mantissa, bias of its exponent, and the pattern of what is too large: the largest number, or Inf."""
WIDER = {
    "F32": {"F64"},
    "F16": {"F32", "F64"},
    "BF16": {"F32", "F64"},
    "F8_E4M3": {"F16", "BF16", "F32", "F64"},
    "F8_E5M2": {"F16", "BF16", "F32", "F64"},
}
"""dtype → wider dtypes that represent all of its numbers exactly."""
NAMES = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "fp32": "F32", "float16": "F16", "half": "F16",
    "fp16": "F16", "bfloat16": "BF16", "bf16": "BF16", **{name.lower(): name for name in FLOATS},
}  # fmt: skip
"""Name in a config, in Megatron's arguments or on the command line → dtype."""


def parse_dtype(name: object) -> str | None:
    """Return the dtype that a config names (``bfloat16``, ``torch.bfloat16``); None for an unknown name."""
    return NAMES.get(str(name).lower().removeprefix("torch.")) if name is not None else None


def is_lossless_cast(source: str, target: str) -> bool:
    """Whether the target dtype represents every number of the source dtype."""
    return source == target or target in WIDER.get(source, ())


def can_cast(source: str, target: str) -> bool:
    """Whether `cast_patterns` supports this cast."""
    form = FORMATS.get(source)
    return target in FLOATS and form is not None and not form.integer and not form.packed and source != "C64"


def cast_patterns(patterns: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Cast bit patterns (unsigned integers) from one dtype to another. The payload of a NaN is unspecified."""
    return patterns if source == target else encode(target, decode(source, patterns))


def encode(dtype: str, values: NDArray[Any]) -> NDArray[Any]:
    """Return the patterns of float values in one of ROUNDED. 8-bit floats saturate E4M3 and overflow E5M2, as torch does."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if dtype == "F64":
            return np.asarray(values, np.float64, "C").view(np.uint64)
        single = np.asarray(values, np.float32, "C")
        if dtype == "F32":
            return single.view(np.uint32)
        if dtype == "F16":
            return single.astype(np.float16).view(np.uint16)
        if dtype == "BF16":
            bits = single.view(np.uint32)
            rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
            return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
        return _round_to_8_bits(dtype, single.reshape(-1)).reshape(single.shape)


def _round_to_8_bits(dtype: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round by the bits of float32: the upper ones of a normal number are its pattern, but for the bias."""
    import numpy as np

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


def canonicalize_nan(patterns: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Give all NaNs one pattern: the payload of a NaN after a cast depends on the machine."""
    import numpy as np

    form = FORMATS[dtype]
    if form.infinity is None or form.integer:
        return patterns
    kind = patterns.dtype.type
    return np.where((patterns & kind(form.sign - 1)) > kind(form.infinity), kind(form.infinity + 1), patterns)
