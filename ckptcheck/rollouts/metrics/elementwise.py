"""Compares logprobs element by element, as ``numpy.testing.assert_allclose`` does, and says where they differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 1e-3
"""atol and rtol of NeMo-RL's diagnostic 4 (tools/model_diagnostics/4.vllm_precision_compilation_test.py)."""


@dataclass(frozen=True)
class ElementwiseGap:
    """How many logprobs of one run are beyond the tolerance of another, and by how much."""

    elements: int
    """Number of compared logprobs."""
    beyond: int
    """Number of logprobs beyond the tolerance, those that are not finite in one run alone included."""
    largest: float
    """Largest |Δ| in nats; 0 where no pair is finite."""
    relative: float
    """Largest |Δ| / |logprob of the reference| among those beyond the tolerance; 0 where there is none."""
    place: tuple[int, int] | None
    """(sequence, position of its token) of the largest |Δ|, to 1e-6 nats, both from 0; None where no pair is finite."""
    one_sided: int
    """Number of logprobs that are NaN, infinite or missing in one run and not in the same way in the other."""
    one_sided_place: tuple[int, int] | None = None
    """(sequence, position) of the first of these."""

    @property
    def share(self) -> float:
        """Share of the logprobs that are beyond the tolerance, from 0 to 1."""
        return self.beyond / self.elements if self.elements else 0.0


def compare_elements(
    reference: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]],
    starts: Sequence[int],
    tolerance: float = TOLERANCE,
) -> ElementwiseGap:
    """Compare two runs: |other − reference| ≤ tolerance + tolerance · |reference| for every element.

    reference, other: logprobs of the same sequences. starts: position of the token that the first logprob of each sequence
    belongs to. Elements that are NaN, or the same infinity, in both runs agree; a missing one counts as NaN.
    """
    import numpy as np

    elements = beyond = one_sided = 0
    largest, largest_rounded, relative = 0.0, 0.0, 0.0
    place: tuple[int, int] | None = None
    one_sided_place: tuple[int, int] | None = None
    for sequence, (expected_row, actual_row, start) in enumerate(zip(reference, other, starts, strict=True)):
        length = max(len(expected_row), len(actual_row))
        expected, actual = np.full(length, np.nan), np.full(length, np.nan)
        expected[: len(expected_row)], actual[: len(actual_row)] = expected_row, actual_row
        finite = np.isfinite(expected) & np.isfinite(actual)
        odd = ~finite & ~((expected == actual) | (np.isnan(expected) & np.isnan(actual)))
        # elements that are not finite are counted apart
        difference = np.where(finite, np.abs(np.where(finite, actual, 0) - np.where(finite, expected, 0)), 0)
        size = np.where(finite, np.abs(expected), 0)
        outside = finite & (difference > tolerance + tolerance * size)
        elements, beyond = elements + length, beyond + int(outside.sum()) + int(odd.sum())
        if odd.any():
            one_sided += int(odd.sum())
            one_sided_place = one_sided_place or (sequence, start + int(odd.argmax()))
        # the first of equally large ones, whatever their last bits
        rounded = difference.round(6)
        if finite.any() and (place is None or rounded.max() > largest_rounded):
            largest_rounded, place = float(rounded.max()), (sequence, start + int(rounded.argmax()))
        largest = max(largest, float(difference.max(initial=0)))
        if (outside & (size > 0)).any():
            rows = outside & (size > 0)
            relative = max(relative, float((difference[rows] / size[rows]).max()))
    return ElementwiseGap(elements, beyond, largest, relative, place, one_sided, one_sided_place)
