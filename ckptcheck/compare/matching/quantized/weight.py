"""Base class of quantized weights: the stored tensors, and the numbers that they encode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ckptcheck.compare.bridge.tensor_layout import TensorLayout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.compare.matching.tensor_files import TensorFiles

SplitByTable = Callable[[TensorLayout], "dict[str, TensorLayout] | None"]
"""Splits a tensor as a family's table does: plain name → part; None if the table does not list the tensor."""


class DequantizedRows(NamedTuple):
    """Rows of a quantized weight; all arrays are float32 [rows, columns]."""

    values: NDArray[np.float32]
    # Distances to the next lower and the next higher number of the grid.
    below: NDArray[np.float32]
    above: NDArray[np.float32]
    # The magnitude relative to which 16-bit arithmetic errs; None for the magnitude of the values.
    span: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class QuantizedWeight(ABC):
    """A weight that is stored as several tensors: quantized numbers, scales, zero points."""

    # Names of the stored tensors; the one with the numbers comes first.
    names: tuple[str, ...]
    # Shape of the dequantized weight.
    shape: tuple[int, ...]
    # Role (weight, weight_scale, …) → where that tensor lies.
    parts: Mapping[str, TensorLayout] = field(repr=False)

    @property
    def unsupported_reason(self) -> str | None:
        """Why `diff` cannot dequantize it; None if it can."""
        return None

    @property
    def files(self) -> frozenset[str]:
        """The files that hold its stored tensors."""
        return frozenset().union(*(part.files for part in self.parts.values()))

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the tensor that holds the numbers."""

    @abstractmethod
    def dequantize_rows(self, files: TensorFiles, begin: int, end: int) -> DequantizedRows:
        """Return rows [begin, end) of the weight as [outputs, inputs].

        Raises UnreadableFile, and IndexError or ValueError if the stored tensors do not fit each other.
        """

    def split(self, layout: SplitByTable) -> dict[str, QuantizedWeight] | None:
        """Split it as a family's table splits the dense tensor of its name; None if there is nothing to split."""
        return None


@dataclass(frozen=True)
class UnsupportedWeight(QuantizedWeight):
    """A weight of a format that `diff` does not dequantize."""

    reason: str = ""

    @property
    def unsupported_reason(self) -> str | None:
        """Why `diff` cannot dequantize it."""
        return self.reason

    @property
    def nbytes(self) -> int:
        """Bytes of the first stored tensor."""
        return next(iter(self.parts.values())).nbytes

    def split(self, layout: SplitByTable) -> dict[str, QuantizedWeight] | None:
        """Return the plain names of the experts that it stacks; the other side stores them one by one."""
        if len(self.shape) < 3 or not self.nbytes:
            return None
        like_dense = TensorLayout("U8", 1, (self.shape[0], 2, 2), ())
        return dict.fromkeys(layout(like_dense) or (), self) or None

    def dequantize_rows(self, files: TensorFiles, begin: int, end: int) -> DequantizedRows:
        """Raise ValueError: the format is not supported."""
        raise ValueError(self.reason)
