"""Casts bit patterns from one dtype to another as torch does: to the nearest number, ties to even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes that `cast_patterns` can cast to."""
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
    import numpy as np

    if source == target:
        return patterns
    values = decode(source, patterns)
    # Numbers that are too large become Inf, as in torch.
    with np.errstate(over="ignore", invalid="ignore"):
        if target == "F64":
            return values.astype(np.float64).view(np.uint64)
        narrow = values.astype(np.float32)
        if target == "F16":
            return narrow.astype(np.float16).view(np.uint16)
    bits: NDArray[np.uint32] = narrow.view(np.uint32)
    if target == "F32":
        return bits
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.where(np.isnan(narrow), np.uint16(0x7FC0), (rounded >> np.uint32(16)).astype(np.uint16))


def canonicalize_nan(patterns: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Give all NaNs one pattern: the payload of a NaN after a cast depends on the machine."""
    import numpy as np

    form = FORMATS[dtype]
    if form.infinity is None or form.integer:
        return patterns
    kind = patterns.dtype.type
    return np.where((patterns & kind(form.sign - 1)) > kind(form.infinity), kind(form.infinity + 1), patterns)
