"""An absurd number, whose square is infinite, spoils the profile of a matrix: nothing is read from it, and numpy says nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ckptcheck.values.detectors.channel_profiles import (
    centre_profile,
    clip_profile,
    compute_adjusted_r2,
    correlate_profiles,
)

SOUND = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("absurd", [np.inf, np.nan])
def test_a_profile_that_is_not_finite_is_like_none(absurd: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert correlate_profiles(np.array([1.0, absurd, 4.0]), SOUND) == 0
        assert not centre_profile(np.array([1.0, absurd, 4.0])).any()
        assert not clip_profile(centre_profile(np.array([1.0, absurd, 4.0]))).any()


def test_finite_profiles_are_compared() -> None:
    assert correlate_profiles(SOUND, SOUND) == pytest.approx(1)
    assert centre_profile(SOUND).sum() == pytest.approx(0)


def test_what_references_explain_is_compared_with_what_random_ones_would() -> None:
    random = np.random.default_rng(1)
    references = random.normal(size=(20, 200))
    references -= references.mean(axis=1, keepdims=True)
    followed = references[3] + 0.5 * references[7]
    unrelated = random.normal(size=200)
    profiles = np.stack([followed, unrelated - unrelated.mean(), np.zeros(200)])
    followed_r2, unrelated_r2, none = compute_adjusted_r2(profiles, references).tolist()
    assert followed_r2 == pytest.approx(1, abs=1e-6)
    assert abs(unrelated_r2) < 0.2
    assert none == 0
    # references that are copies of each other explain what one of them does
    twice = compute_adjusted_r2(profiles[:1], references[[3, 3, 7, 7]])
    assert twice[0] == pytest.approx(1, abs=1e-6)
