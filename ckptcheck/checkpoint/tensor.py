"""A tensor, as the header of a safetensors file describes it."""

from __future__ import annotations

from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""The bound is msgspec's; what lies between it and 2^64 goes the slow way."""

PLAIN = frozenset(("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"))
"""dtypes of which each element is one number of the model."""


class Tensor(msgspec.Struct, gc=False, frozen=True):
    """A tensor as the header describes it. data_offsets: [begin, end) in bytes from the start of the data."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor occupies in the file."""
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def is_plain(self) -> bool:
        """Whether each element is one number of the model, so that the shape is the model's own (not packed)."""
        return self.dtype in PLAIN

    @property
    def has_rows(self) -> bool:
        """Whether it is a matrix of numbers, so that each row can be looked at."""
        return self.is_plain and len(self.shape) == 2 and 0 not in self.shape
