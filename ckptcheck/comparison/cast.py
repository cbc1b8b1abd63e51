"""From one dtype to another, as torch does it: to the nearest, ties to even."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes that can be cast to."""
WIDER = {
    "F32": {"F64"},
    "F16": {"F32", "F64"},
    "BF16": {"F32", "F64"},
    "F8_E4M3": {"F16", "BF16", "F32", "F64"},
    "F8_E5M2": {"F16", "BF16", "F32", "F64"},
}
"""dtype → those that hold each of its numbers."""
NAMES = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "fp32": "F32", "float16": "F16", "half": "F16",
    "fp16": "F16", "bfloat16": "BF16", "bf16": "BF16", **{name.lower(): name for name in FLOATS},
}  # fmt: skip
"""How configs, Megatron's arguments and people call a dtype."""


def dtype_named(name: object) -> str | None:
    """Return the dtype that a config names (``bfloat16``, ``torch.bfloat16``), None where it names none that is known."""
    return NAMES.get(str(name).lower().removeprefix("torch.")) if name is not None else None


def keeps_all(source: str, target: str) -> bool:
    """Whether a cast loses nothing."""
    return source == target or target in WIDER.get(source, ())


def can_cast(source: str, target: str) -> bool:
    """Whether `cast` knows how."""
    form = FORMATS.get(source)
    return target in FLOATS and form is not None and not form.integer and not form.packed and source != "C64"


def cast(patterns: NDArray[Any], source: str, target: str) -> NDArray[Any]:
    """Turn patterns (unsigned integers) of one dtype into those of another. What is left of a NaN's payload is not said."""
    import numpy as np

    if source == target:
        return patterns
    values = decode(source, patterns)
    with np.errstate(over="ignore", invalid="ignore"):  # too large is Inf, as in torch
        if target == "F64":
            return values.astype(np.float64).view(np.uint64)
        narrow = values.astype(np.float32)
        if target == "F16":
            return narrow.astype(np.float16).view(np.uint16)
    bits: NDArray[np.uint32] = narrow.view(np.uint32)
    if target == "F32":
        return bits
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    result = (rounded >> np.uint32(16)).astype(np.uint16)
    result[np.isnan(narrow)] = 0x7FC0
    return result


def one_nan(patterns: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Give all NaN one pattern: what is left of a NaN's payload after a cast depends on the machine."""
    import numpy as np

    form = FORMATS[dtype]
    if form.infinity is None or form.integer:
        return patterns
    kind = patterns.dtype.type
    return np.where((patterns & kind(form.sign - 1)) > kind(form.infinity), kind(form.infinity + 1), patterns)
