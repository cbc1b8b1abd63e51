"""Describes one tensor of a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""The upper bound is msgspec's; the slow parser handles numbers between it and 2^64."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""dtype → bits of one element, for every dtype that safetensors 0.8 knows."""

if TYPE_CHECKING:
    Dtype = str
else:
    # The decoder then keeps the name of a known dtype once, and not once for each tensor. Other code makes tensors of any dtype.
    Dtype = Literal[tuple(BITS)]

PLAIN = frozenset(("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"))
"""dtypes whose elements are the model's numbers one by one (not packed)."""


class Tensor(msgspec.Struct, gc=False, frozen=True):
    """A tensor as the header of a safetensors file describes it."""

    dtype: Dtype
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]
    """[begin, end) in bytes from the start of the file's data."""

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor occupies in the file."""
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def is_plain(self) -> bool:
        """Whether each element is one number of the model (not packed), so that the shape is the model's shape."""
        return self.dtype in PLAIN

    @property
    def has_rows(self) -> bool:
        """Whether the tensor is a non-empty matrix of numbers, so that its rows can be examined."""
        return self.is_plain and len(self.shape) == 2 and 0 not in self.shape
