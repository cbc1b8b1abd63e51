"""The bins of the pictures of tokens are those that a search of the edges finds."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.reporters.pictures.token_gaps import find_bins


@pytest.mark.parametrize("number", [3, 21, 33, 202])
@pytest.mark.parametrize(("low", "high"), [(-6.0, 6.0), (-20.0, 0.0), (-1e-6, 1e-6), (-1e-3, 0.0), (-3.3, 0.1)])
def test_values_on_and_beside_the_edges(number: int, low: float, high: float) -> None:
    edges = np.linspace(low, high, number)
    beside = [np.nextafter(edges, end) for end in (-np.inf, np.inf)]
    drawn = np.random.default_rng(0).uniform(2 * low, high + 1, 5000)
    values = np.concatenate((edges, *beside, drawn, [-1e30, 1e30, 0.0, -0.0]))
    searched = np.clip(np.searchsorted(edges, values, "right") - 1, 0, number - 2)
    assert find_bins(values, edges).tolist() == searched.tolist()
