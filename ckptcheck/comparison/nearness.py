"""A quantized weight against the dense one: how far apart may they be, and how far apart are they?

Rounding to the nearest number of the grid errs by half a step at most. A step follows from bits and group: the scale for
integers, the distance of neighbouring floats times the scale for fp8. What the arithmetic of 16-bit floats adds (the weight
is divided by its scale there, and the scale itself is rounded) is at most 2^-8 of the number, and where there is a zero point
of the range of the grid. compressed-tensors' own compressors keep to it in every scheme (tests/comparison/test_quantized.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from ckptcheck.bridge.area import Area, LayoutError
from ckptcheck.comparison.matching import Pair
from ckptcheck.comparison.packed import Numbers, Packed
from ckptcheck.comparison.reading import Files, Unreadable
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 1 << 20
"""Numbers looked at together."""
ROOM = 1 << 26
"""Bytes of a dense tensor that are read at once."""
HALF = 0.5
FAR = 1.0
"""Steps in the mean (rms) from which weights are others: rounding makes 0.29 of them."""
ALIKE = 0.7
"""Cosine below which they are others, for grids of so few numbers that nothing is a step away: rounding to 2 bits leaves 0.9."""
ARITHMETIC = 2.0**-8
"""Share of a number by which bf16 arithmetic may miss it."""


@dataclass
class Nearness:
    """steps: the largest distance, in steps of the grid. rms: the root of the mean square of all, in steps.

    beyond: numbers farther than rounding explains. not_finite: those of which one side is NaN or infinite. largest: the largest
    distance itself. cosine: between the two, as vectors.
    """

    elements: int = 0
    beyond: int = 0
    not_finite: int = 0
    steps: float = 0.0
    largest: float = 0.0
    squares: float = 0.0
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def rms(self) -> float:
        """Root of the mean squared distance, in steps."""
        return sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def cosine(self) -> float:
        """1 where the two point the same way, about 0 where they have nothing to do with each other."""
        dot, ours, theirs = self.products
        return dot / sqrt(ours * theirs) if ours and theirs else float(ours == theirs)

    @property
    def is_other(self) -> bool:
        """Whether these are other weights: no method that quantizes the dense ones moves them so far."""
        return bool(self.not_finite) or (bool(self.beyond) and (self.rms >= FAR or self.cosine < ALIKE))

    def is_wrong(self, *, came_first: bool) -> bool:
        """Whether the two are no pair. came_first: the quantized side is the reference."""
        return self.is_other or (came_first and bool(self.beyond))


def nearness(dense: Area, packed: Packed, files: tuple[Files, Files], *, came_first: bool) -> Nearness:
    """Compare row by row. files: of the dense side, then of the packed one. came_first: the quantized side is the reference,
    so that the dense one has to be what it stands for, rounded once.

    Raises Unreadable.
    """
    found = Nearness()
    step = max(1, ROWS // max(packed.shape[1], 1))
    for first, last in _slabs(dense):
        raw = files[0].whole(dense.cut(0, first, last))
        for begin in range(first, last, step):
            end = min(last, begin + step)
            weights = decode(dense.dtype, raw[begin - first : end - first]).astype(np.float32)
            with np.errstate(all="ignore"):  # scales may be anything
                _add(found, weights, packed.rows(files[1], begin, end), came_first)
    return found


def _slabs(dense: Area) -> list[tuple[int, int]]:
    """Ranges of rows that are read at once: of a tensor that lies transposed, few reads of much."""
    lies = any(chunk.strides[-1] != dense.itemsize for chunk in dense.chunks)
    number = max(1, -(-dense.nbytes // (ROOM if lies else ROWS * dense.itemsize)))
    return [(dense.shape[0] * at // number, dense.shape[0] * (at + 1) // number) for at in range(number)]


def _add(found: Nearness, weights: NDArray[np.float32], packed: Numbers, came_first: bool) -> None:
    """Take in some rows."""
    numbers = packed.values
    grid = packed.above if packed.above is packed.below else np.where(weights < numbers, packed.below, packed.above)
    error = np.abs(weights - numbers)
    if came_first:
        allowed = ARITHMETIC * np.abs(numbers)
    else:
        span = packed.span if packed.span is not None else np.abs(numbers)
        allowed = HALF * grid + ARITHMETIC * span
    far = ~(error <= allowed)
    relative = np.where(error == 0, 0, error / grid)
    found.elements += error.size
    found.beyond += int(far.sum())
    finite = np.isfinite(relative)
    if not finite.all():
        found.not_finite += int((~np.isfinite(error)).sum())
        error = error[np.isfinite(error)]
        relative, weights, numbers = relative[finite], weights[finite], numbers[finite]
    found.steps = max(found.steps, float(relative.max(initial=0)))
    found.largest = max(found.largest, float(error.max(initial=0)))
    found.squares += _product(relative, relative)
    sums = _product(weights, numbers), _product(weights, weights), _product(numbers, numbers)
    found.products = tuple(map(sum, zip(found.products, sums, strict=True)))  # type: ignore[assignment]


def _product(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Return the scalar product, added up in float64."""
    return float(np.einsum("i,i->", first.reshape(-1), second.reshape(-1), dtype=np.float64))


def of_pair(pair: Pair, ours: Files, theirs: Files) -> Nearness | str:
    """Compare a quantized weight with a dense one; return why that is not possible, where it is not."""
    try:
        if isinstance(pair.second, Packed):
            assert isinstance(pair.first, Area)
            return nearness(pair.first, pair.second, (ours, theirs), came_first=False)
        assert isinstance(pair.first, Packed)
        return nearness(pair.second, pair.first, (theirs, ours), came_first=True)
    except Unreadable as error:
        return f"{error.file}: {error.reason}"
    except (IndexError, ValueError, LayoutError):  # scales, zero points or groups of a shape that no format has
        return "its scales, zero points or groups do not fit the weight"
