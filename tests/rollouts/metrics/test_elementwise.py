"""Logprobs compared element by element, beside numpy's own assert_allclose."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.rollouts.metrics.elementwise import compare_elements

NAN = float("nan")


@pytest.mark.parametrize(
    ("reference", "other", "beyond", "largest", "relative", "place"),
    [
        ([-1.0, -2.0], [-1.0, -2.0], 0, 0.0, 0.0, (0, 3)),
        ([-1.0, -2.0], [-1.0019, -2.0029], 0, 0.0029, 0.0, (0, 4)),
        ([-1.0, -2.0], [-1.0021, -2.0029], 1, 0.0029, 0.0021, (0, 4)),
        ([-1.0, -10.0], [-1.5, -10.4], 2, 0.5, 0.5, (0, 3)),
        ([0.0, -1.0], [-0.5, -1.0], 1, 0.5, 0.0, (0, 3)),
    ],
)
def test_the_tolerance_is_that_of_numpy(
    reference: list[float], other: list[float], beyond: int, largest: float, relative: float, place: tuple[int, int]
) -> None:
    gap = compare_elements([reference], [other], [3])
    assert (gap.elements, gap.beyond, gap.place, gap.one_sided) == (2, beyond, place, 0)
    assert gap.largest == pytest.approx(largest)
    assert gap.relative == pytest.approx(relative)
    assert bool(np.allclose(other, reference, atol=1e-3, rtol=1e-3)) is (beyond == 0)


def test_what_is_not_finite_in_one_run_alone_is_counted_with_its_place() -> None:
    reference = [[-1.0, NAN, -float("inf")], [-1.0, -2.0, -3.0]]
    other = [[-1.0, NAN, -float("inf")], [-1.0, NAN]]
    gap = compare_elements(reference, other, [1, 5])
    assert (gap.elements, gap.beyond, gap.one_sided, gap.one_sided_place) == (6, 2, 2, (1, 6))
    assert gap.share == pytest.approx(1 / 3)
    assert gap.place == (0, 1)


def test_nothing_to_compare_is_no_difference() -> None:
    gap = compare_elements([[]], [[]], [1])
    assert (gap.elements, gap.beyond, gap.share, gap.place) == (0, 0, 0.0, None)
