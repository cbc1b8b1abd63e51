"""A tensor as the bits it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Bits:
    """dtype: as safetensors calls it. patterns: unsigned integers in the tensor's shape, a view of a mapped file at best.

    Bits, because equality is of bits: NaN equals itself, and 0 is not -0.
    """

    dtype: str
    patterns: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.patterns.shape

    @property
    def matrix(self) -> NDArray[Any]:
        """The patterns as [rows, columns]: a vector is one column, further dimensions are columns too."""
        shape = self.patterns.shape
        rows = shape[0] if shape else 1
        return self.patterns.reshape(rows, -1) if self.patterns.size else self.patterns.reshape(rows, 0)
