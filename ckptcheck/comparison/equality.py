"""What it means for two runs of elements to be equal, and what is written down where they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.comparison.cast import cast, one_nan
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class How:
    """How two dtypes are held against each other.

    target: the dtype to which both are brought first. Equality is then that of bits, so -0 is not 0, and a NaN is equal to
    the same NaN (to any NaN after a cast). With a tolerance numbers are equal too where |a - b| <= atol + rtol * |a|.
    """

    first: str
    second: str
    target: str
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_bitwise(self) -> bool:
        """Whether equal bytes and nothing else are equal."""
        return self.first == self.second == self.target and not self.rtol and not self.atol


@dataclass
class Seen:
    """What the elements of one tensor showed. largest: the largest |a - b| among differing finite numbers.

    not_finite: differing elements of which one is NaN or infinite. first: index of the first that differs, in the tensor.
    """

    elements: int = 0
    different: int = 0
    largest: float = 0.0
    not_finite: int = 0
    first: tuple[int, ...] | None = None

    def add(self, other: Seen) -> None:
        """Take in what another part of the tensor showed."""
        self.elements += other.elements
        self.different += other.different
        self.largest = max(self.largest, other.largest)
        self.not_finite += other.not_finite
        if other.first is not None and (self.first is None or other.first < self.first):
            self.first = other.first


def compare(first: NDArray[Any], second: NDArray[Any], how: How, origin: tuple[int, ...]) -> Seen:
    """Compare patterns of equal shape, unsigned integers of each side's dtype. origin: index of their first element."""
    import numpy as np

    seen = Seen(first.size)
    if how.first == how.second == how.target:
        ours, theirs = first, second
    else:
        ours, theirs = cast(first, how.first, how.target), cast(second, how.second, how.target)
        ours, theirs = one_nan(ours, how.target), one_nan(theirs, how.target)
    unequal = ours != theirs
    if not unequal.any():
        return seen
    if FORMATS[how.target].packed or FORMATS[how.target].integer:
        values = ours[unequal].astype(np.float64), theirs[unequal].astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):  # signalling NaN
            values = (
                decode(how.first, first[unequal]).astype(np.float64),
                decode(how.second, second[unequal]).astype(np.float64),
            )
    with np.errstate(invalid="ignore"):
        error = np.abs(values[0] - values[1])
        if how.rtol or how.atol:
            beyond = ~(np.isfinite(error) & (error <= how.atol + how.rtol * np.abs(values[0])))
            unequal[unequal] = beyond
            error = error[beyond]
    finite = np.isfinite(error)
    seen.different = int(error.size)
    seen.not_finite = int(error.size - finite.sum())
    seen.largest = float(error[finite].max(initial=0.0))
    if seen.different:
        at = np.unravel_index(int(unequal.argmax()), unequal.shape)
        seen.first = tuple(int(index) + begin for index, begin in zip(at, origin, strict=True))
    return seen
