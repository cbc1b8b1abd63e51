"""Keeps some elements of a weight, from which the size of an update is measured."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from ckptcheck.compare.bridge.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 256
"""Elements of each weight that are kept: enough to see a tensor jump, and a kilobyte."""
GOLDEN = 0.6180339887498949
"""Steps of this share of a tensor spread over it evenly, and meet no column twice as often as another."""


class Sample:
    """Elements of a tensor at places that depend on its shape alone, whichever way it is cut."""

    def __init__(self, layout: TensorLayout) -> None:
        import numpy as np

        elements = prod(layout.shape)
        number = min(elements, SAMPLES)
        flat = (
            np.arange(elements)
            if elements <= SAMPLES
            else (np.arange(1, number + 1) * GOLDEN % 1 * elements).astype(int)
        )
        self._dtype = layout.dtype
        self._places = np.array(np.unravel_index(flat, layout.shape)) if layout.shape else np.zeros((0, number), int)
        self._values = np.zeros(number, np.float32)

    def take(self, values: NDArray[Any], origin: tuple[int, ...]) -> None:
        """Take the elements that a rectangle holds. values: its elements as unsigned integers; origin: its first index."""
        import numpy as np

        from ckptcheck.values.dtypes import decode

        inside = np.ones(len(self._values), bool)
        for axis, (begin, size) in enumerate(zip(origin, values.shape, strict=True)):
            inside &= (self._places[axis] >= begin) & (self._places[axis] < begin + size)
        if inside.any():
            index = tuple(self._places[axis][inside] - begin for axis, begin in enumerate(origin))
            self._values[inside] = decode(self._dtype, np.ascontiguousarray(values[index]).reshape(-1))

    def encode(self) -> bytes:
        """Return the elements as float32 in little-endian order."""
        return self._values.astype("<f4").tobytes()
