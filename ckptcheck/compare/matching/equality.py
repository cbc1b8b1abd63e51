"""Defines when two tensors are equal, and compares their elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.compare.matching.cast import canonicalize_nan, cast_patterns
from ckptcheck.values.dtypes import FORMATS, decode_float64

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Tolerance(msgspec.Struct, frozen=True):
    """The equality that the user accepts."""

    # A dtype to which both sides are cast, "none", or "auto": the second side's own dtype where its config declares it, or
    # where the cast loses nothing.
    cast: str = "auto"
    # |a - b| <= atol + rtol * |a|, where a is of the first side.
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def text(self) -> str:
        """The tolerance in words, for the report."""
        return f"rtol {self.rtol:g}, atol {self.atol:g}" if self.rtol or self.atol else "bitwise"


class CompareSpec(msgspec.Struct, frozen=True):
    """How a pair of tensors is compared.

    Equality is of bits: -0 differs from 0, and a NaN equals the same NaN (after a cast, any NaN). With a tolerance, numbers are
    also equal where |a - b| <= atol + rtol * |a|.
    """

    # dtypes of the two sides.
    first: str
    second: str
    # The dtype to which both are cast first.
    target: str
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_bitwise(self) -> bool:
        """Whether only equal bytes are equal."""
        return self.first == self.second == self.target and not self.rtol and not self.atol


class CompareResult(msgspec.Struct):
    """How the elements of a pair of tensors, or of a part of it, differ."""

    # Elements that were compared.
    elements: int = 0
    # Elements that differ.
    different: int = 0
    # The largest |a - b| among differing finite numbers.
    largest: float = 0.0
    # Differing elements that are NaN or infinite on one side.
    not_finite: int = 0
    # Index in the tensor of the first element that differs.
    first: tuple[int, ...] | None = None

    def add(self, other: CompareResult) -> None:
        """Add the result of another part of the tensor."""
        self.elements += other.elements
        self.different += other.different
        self.largest = max(self.largest, other.largest)
        self.not_finite += other.not_finite
        if other.first is not None and (self.first is None or other.first < self.first):
            self.first = other.first


def compare_elements(
    first: NDArray[Any], second: NDArray[Any], how: CompareSpec, origin: tuple[int, ...]
) -> CompareResult:
    """Compare bit patterns of equal shape.

    Args:
        first: bit patterns of the first side, unsigned integers of its element size.
        second: those of the second side.
        how: how to compare them.
        origin: index of their first element in the tensor.
    """
    import numpy as np

    result = CompareResult(first.size)
    if how.first == how.second == how.target:
        ours, theirs = first, second
    else:
        ours, theirs = cast_patterns(first, how.first, how.target), cast_patterns(second, how.second, how.target)
        ours, theirs = canonicalize_nan(ours, how.target), canonicalize_nan(theirs, how.target)
    unequal = ours != theirs
    if not unequal.any():
        return result
    if FORMATS[how.target].packed or FORMATS[how.target].integer:
        values = ours[unequal].astype(np.float64), theirs[unequal].astype(np.float64)
    else:
        values = decode_float64(how.first, first[unequal]), decode_float64(how.second, second[unequal])
    with np.errstate(invalid="ignore"):
        error = np.abs(values[0] - values[1])
        if how.rtol or how.atol:
            beyond = ~(np.isfinite(error) & (error <= how.atol + how.rtol * np.abs(values[0])))
            unequal[unequal] = beyond
            error = error[beyond]
    finite = np.isfinite(error)
    result.different = int(error.size)
    result.not_finite = int(error.size - finite.sum())
    result.largest = float(error[finite].max(initial=0.0))
    if result.different:
        at = np.unravel_index(int(unequal.argmax()), unequal.shape)
        result.first = tuple(int(index) + begin for index, begin in zip(at, origin, strict=True))
    return result
