"""A quantized weight: the tensors that make it up, and the numbers that they stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ckptcheck.bridge.area import Area

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.comparison.reading import Files

Layout = Callable[[Area], "dict[str, Area] | None"]
"""Plain name → part of a tensor; None where a family's table does not know the tensor."""


class Numbers(NamedTuple):
    """Rows of a quantized weight, all float32 [rows, columns].

    below, above: the distance to the next number of the grid on either side, as far as a weight may have been rounded from.
    span: the magnitude in which 16-bit arithmetic errs, beside that of the numbers themselves.
    """

    values: NDArray[np.float32]
    below: NDArray[np.float32]
    above: NDArray[np.float32]
    span: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Packed(ABC):
    """names: of its tensors, the numbers first. shape: of the weight. parts: role → tensor."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    parts: Mapping[str, Area] = field(repr=False)

    @property
    def unknown(self) -> str | None:
        """Why it cannot be dequantised, None where it can."""
        return None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the tensor that holds the numbers."""

    @abstractmethod
    def rows(self, files: Files, begin: int, end: int) -> Numbers:
        """Return rows [begin, end) of the weight, of outputs and inputs. Raises Unreadable, ValueError where parts do not fit."""

    def cut(self, layout: Layout) -> dict[str, Packed] | None:
        """Cut it as a family's table cuts the dense tensor of its name; None where nothing is to be cut."""
        return None


@dataclass(frozen=True)
class Unknown(Packed):
    """A weight that diff does not dequantise. why: in words."""

    why: str = ""

    @property
    def unknown(self) -> str | None:
        """Why it cannot be dequantised."""
        return self.why

    @property
    def nbytes(self) -> int:
        """Bytes of the first tensor."""
        return next(iter(self.parts.values())).nbytes

    def cut(self, layout: Layout) -> dict[str, Packed] | None:
        """Name the experts that it stacks: the other side has them one by one."""
        if len(self.shape) < 3 or not self.nbytes:
            return None
        like_dense = Area("U8", 1, (self.shape[0], 2, 2), ())
        return dict.fromkeys(layout(like_dense) or (), self) or None

    def rows(self, files: Files, begin: int, end: int) -> Numbers:
        """There are none."""
        raise ValueError(self.why)
