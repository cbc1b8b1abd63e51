"""Measures how far a quantized weight is from the dense one, and how far rounding allows it to be.

Rounding to the nearest number of the grid errs by at most half a step. The step follows from bits and group: for integers it is
the scale, for fp8 the distance of neighbouring floats times the scale. 16-bit arithmetic (dividing the weight by its scale, and
rounding the scale) adds at most 2^-8 of the number or, with a zero point, of the range of the grid. compressed-tensors' own
compressors stay within this bound in every scheme (tests/compare/matching/quantized/test_formats.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.compare.matching.quantized.weight import DequantizedRows, QuantizedWeight
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile, WorkOnPairs
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 20
"""Numbers that are compared at a time."""
MAX_READ_BYTES = 1 << 26
"""Bytes of a dense tensor that are read at a time."""
REMOTE_WEIGHTS = 4
"""Weights at a time where a side is not on this machine; each holds several times MAX_READ_BYTES."""
HALF = 0.5
OTHER_WEIGHT_RMS = 1.0
"""Root mean square distance, in steps, at which the sides count as other weights: rounding causes 0.29."""
OTHER_WEIGHT_COSINE = 0.7
"""The same for the cosine, for grids so coarse that nothing is a step away: rounding to 2 bits leaves 0.9."""
ARITHMETIC = 2.0**-8
"""Relative error of one rounding to bf16. Smoothing, which divides a norm and multiplies a column, rounds twice more."""
OVERDONE_ERROR, OVERDONE_RATIO = 0.35, 2.0
"""Relative error of a smoothed weight once the smoothing is undone, and that error divided by the one before, from which the
smoothing is overdone. AWQ's search on SmolLM2-135M (4 bits, groups of 64; scales that span up to 38) leaves at most 0.18, which is
1.7 times what rounding without smoothing costs; scales that span 25 without a reason leave 0.51, four times as much."""


class Scaling(msgspec.Struct, frozen=True):
    """What smoothing multiplies a dense weight by."""

    # Factor of each column, float64 [inputs], and of each row, float64 [outputs]; None for 1.
    columns: NDArray[np.float64] | None = None
    rows: NDArray[np.float64] | None = None
    # Relative error of a number that rounding, or the estimate of the factors, explains.
    slack: float = 3 * ARITHMETIC

    def invert(self) -> Scaling:
        """Return what undoes it."""
        columns, rows = (None if one is None else 1 / one for one in (self.columns, self.rows))
        return Scaling(columns, rows, self.slack)

    def take_rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Return the factors of some rows, in a shape that broadcasts to them."""
        own = np.ones((1, 1)) if self.rows is None else self.rows[begin:end, None]
        return (own if self.columns is None else own * self.columns).astype(np.float32)


class QuantizedDistance(msgspec.Struct):
    """How far a quantized weight is from the dense one."""

    elements: int = 0
    # Numbers that are farther away than rounding explains.
    beyond: int = 0
    # Numbers that are NaN or infinite on one side.
    not_finite: int = 0
    # The largest distance, in steps of the grid.
    steps: float = 0.0
    # The largest distance.
    largest: float = 0.0
    # Sum of the squared distances, in steps.
    squares: float = 0.0
    # Scalar products: dense with quantized, dense with itself, quantized with itself.
    products: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # The same once smoothing is undone; zeros if the weight is not smoothed.
    undone: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # The smallest and the largest factor that smoothing multiplies a column by.
    span: tuple[float, float] = (1.0, 1.0)

    @property
    def is_smoothed(self) -> bool:
        """Whether the quantized weight holds the dense columns times the factors that its norm was divided by."""
        return self.undone[1] > 0

    @property
    def undone_error(self) -> float:
        """Relative error once smoothing is undone."""
        return _relative_error(self.undone)

    @property
    def is_overdone(self) -> bool:
        """Whether smoothing left the small columns too few steps of the grid."""
        error = self.undone_error
        return error >= max(OVERDONE_ERROR, OVERDONE_RATIO * _relative_error(self.products))

    @property
    def rms(self) -> float:
        """Root mean square distance, in steps of the grid."""
        return sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def cosine(self) -> float:
        """Cosine between the two as vectors: 1 for the same direction, about 0 for unrelated weights."""
        dot, ours, theirs = self.products
        return dot / sqrt(ours * theirs) if ours and theirs else float(ours == theirs)

    @property
    def is_different_weight(self) -> bool:
        """Whether the sides are different weights: no quantization method moves a weight so far."""
        return (
            bool(self.not_finite)
            or self.is_overdone
            or (bool(self.beyond) and (self.rms >= OTHER_WEIGHT_RMS or self.cosine < OTHER_WEIGHT_COSINE))
        )

    def is_mismatch(self, *, came_first: bool) -> bool:
        """Whether the two weights do not belong together. came_first: the quantized side is the reference."""
        return self.is_different_weight or (came_first and bool(self.beyond))


def _relative_error(products: tuple[float, float, float]) -> float:
    """Return the length of the difference of two vectors, relative to the first, from their scalar products."""
    dot, ours, theirs = products
    return sqrt(max(0.0, ours + theirs - 2 * dot) / ours) if ours else 0.0


def measure_distance(
    dense: TensorLayout,
    packed: QuantizedWeight,
    files: tuple[TensorFiles, TensorFiles],
    *,
    came_first: bool,
    scaling: Scaling | None = None,
) -> QuantizedDistance:
    """Compare a dense and a quantized weight row by row. Raises UnreadableFile.

    With a scaling, the dense weight is compared as it is and smoothed; the smaller distance is returned.

    Args:
        dense: the dense weight.
        packed: the quantized weight.
        files: of the dense side, then of the quantized side.
        came_first: the quantized side is the reference, so the dense numbers must equal the dequantized ones, rounded once.
        scaling: what smoothing may have multiplied the dense weight by.
    """
    distance, smoothed = QuantizedDistance(), QuantizedDistance()
    if scaling is not None and scaling.columns is not None:
        smoothed.span = float(scaling.columns.min()), float(scaling.columns.max())
    step = max(1, CHUNK_ELEMENTS // max(packed.shape[1], 1))
    for first, last in _row_ranges(dense):
        raw = files[0].read_tensor(dense.cut(0, first, last))
        for begin in range(first, last, step):
            end = min(last, begin + step)
            weights = decode(dense.dtype, raw[begin - first : end - first]).astype(np.float32)
            # Scales may be any number.
            with np.errstate(all="ignore"):
                rows = packed.dequantize_rows(files[1], begin, end)
                _add_rows(distance, weights, rows, came_first)
                if scaling is not None:
                    factors = scaling.take_rows(begin, end)
                    _add_rows(smoothed, weights * factors, rows, came_first, scaling.slack)
                    smoothed.undone = _add_products(smoothed.undone, weights, rows.values / factors)
    return smoothed if scaling is not None and smoothed.rms < distance.rms else distance


def _row_ranges(dense: TensorLayout) -> list[tuple[int, int]]:
    """Return the ranges of rows that are read at a time. A tensor that is stored transposed is read in few large pieces."""
    is_transposed = any(chunk.strides[-1] != dense.itemsize for chunk in dense.chunks)
    number = max(1, -(-dense.nbytes // (MAX_READ_BYTES if is_transposed else CHUNK_ELEMENTS * dense.itemsize)))
    return [(dense.shape[0] * at // number, dense.shape[0] * (at + 1) // number) for at in range(number)]


def _add_rows(
    distance: QuantizedDistance,
    weights: NDArray[np.float32],
    packed: DequantizedRows,
    came_first: bool,
    slack: float = ARITHMETIC,
) -> None:
    """Add the distances of some rows. slack: relative error of a number."""
    numbers = packed.values
    grid = packed.above if packed.above is packed.below else np.where(weights < numbers, packed.below, packed.above)
    error = np.abs(weights - numbers)
    if came_first:
        allowed = slack * np.abs(numbers)
    else:
        span = packed.span if packed.span is not None else np.abs(numbers)
        if slack > ARITHMETIC:  # what rounds to zero was rounded before, too
            span = np.maximum(span, np.abs(weights))
        allowed = HALF * grid + slack * span
    is_beyond = ~(error <= allowed)
    relative = np.where(error == 0, 0, error / grid)
    distance.elements += error.size
    distance.beyond += int(is_beyond.sum())
    finite = np.isfinite(relative)
    if not finite.all():
        distance.not_finite += int((~np.isfinite(error)).sum())
        error = error[np.isfinite(error)]
        relative, weights, numbers = relative[finite], weights[finite], numbers[finite]
    distance.steps = max(distance.steps, float(relative.max(initial=0)))
    distance.largest = max(distance.largest, float(error.max(initial=0)))
    distance.squares += _product(relative, relative)
    distance.products = _add_products(distance.products, weights, numbers)


def _add_products(
    total: tuple[float, float, float], ours: NDArray[np.float32], theirs: NDArray[np.float32]
) -> tuple[float, float, float]:
    """Add the scalar products of two arrays: first with second, first with itself, second with itself."""
    sums = _product(ours, theirs), _product(ours, ours), _product(theirs, theirs)
    return total[0] + sums[0], total[1] + sums[1], total[2] + sums[2]


def _product(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Return the scalar product, accumulated in float64."""
    return float(np.einsum("i,i->", first.reshape(-1), second.reshape(-1), dtype=np.float64))


class DistanceResult(msgspec.Struct):
    """The distance of a pair, or why it was not measured."""

    distance: QuantizedDistance | None = None
    reason: str = ""


@dataclass(frozen=True)
class QuantizedComparison(WorkOnPairs):
    """Compares a quantized weight with a dense one; `runners.runner.Work`, whose units are the numbers of pairs."""

    pairs: Sequence[TensorPair]
    files: tuple[TensorFiles, TensorFiles]
    # Pair → what smoothing multiplies the first side's weight by.
    scalings: Mapping[int, Scaling] = field(default_factory=dict)
    result_type = DistanceResult
    words = "quantized weights of {} with {}"
    remote_units = REMOTE_WEIGHTS

    def compute(self, unit: int) -> DistanceResult:
        """Compare a pair."""
        distance = compare_quantized_pair(self.pairs[unit], *self.files, self.scalings.get(unit))
        return DistanceResult(reason=distance) if isinstance(distance, str) else DistanceResult(distance)

    def describe(self, unit: int) -> str:
        """Say which pair it is."""
        pair = self.pairs[unit]
        return repr((unit, pair.names, pair.first.nbytes, pair.second.nbytes))

    def weigh(self, unit: int) -> int:
        """Return the bytes of the first side."""
        return self.pairs[unit].first.nbytes

    def find_nodes(self, unit: int) -> frozenset[str]:
        """Return the nodes on whose disks the files lie."""
        pair = self.pairs[unit]
        return self.find_common_nodes(pair.first.files, pair.second.files)

    def fits(self, unit: int, result: DistanceResult) -> bool:
        """Whether it has a distance with nonnegative sums of squares, or a reason."""
        if (found := result.distance) is None:
            return bool(result.reason)
        squares = (found.squares, *found.products[1:])
        return 0 <= found.beyond <= found.elements and all(number >= 0 for number in squares)  # false for NaN

    def is_whole(self, result: DistanceResult) -> bool:
        """Whether the pair was compared."""
        return not result.reason


def compare_quantized_pair(
    pair: TensorPair, ours: TensorFiles, theirs: TensorFiles, scaling: Scaling | None = None
) -> QuantizedDistance | str:
    """Compare a quantized weight with a dense one. Returns the reason as text if that is impossible.

    scaling: what smoothing may have multiplied the first side's weight by.
    """
    try:
        if isinstance(pair.second, QuantizedWeight):
            assert isinstance(pair.first, TensorLayout)
            return measure_distance(pair.first, pair.second, (ours, theirs), came_first=False, scaling=scaling)
        assert isinstance(pair.first, QuantizedWeight)
        inverse = scaling.invert() if scaling is not None else None
        return measure_distance(pair.second, pair.first, (theirs, ours), came_first=True, scaling=inverse)
    except UnreadableFile as error:
        return f"{error.file}: {error.reason}"
    # Scales, zero points or groups have a shape that no format has.
    except (IndexError, ValueError, LayoutError):
        return "its scales, zero points or groups do not fit the weight"
