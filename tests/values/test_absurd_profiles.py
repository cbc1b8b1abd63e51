"""An absurd number, whose square is infinite, spoils the profile of a matrix: nothing is read from it, and numpy says nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ckptcheck.values.detectors.exchanged_projections import _correlate
from ckptcheck.values.detectors.residual_axis import _centre

SOUND = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("absurd", [np.inf, np.nan])
def test_a_profile_that_is_not_finite_is_like_none(absurd: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _correlate(np.array([1.0, absurd, 4.0]), SOUND) == 0
        assert not _centre(np.array([1.0, absurd, 4.0])).any()


def test_finite_profiles_are_compared() -> None:
    assert _correlate(SOUND, SOUND) == pytest.approx(1)
    assert _centre(SOUND).sum() == pytest.approx(0)
