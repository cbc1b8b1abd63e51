"""Shifts of one side against the other, of a whole sequence, of its tail, and of many short ones."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.rollouts import Rollout, Rollouts, build_rollouts
from ckptcheck.rollouts.metrics.logprob_metrics import compute_metrics
from ckptcheck.rollouts.metrics.shift import ShiftSearch, find_shifts


def _search(rollouts: Rollouts) -> ShiftSearch:
    metrics = compute_metrics(rollouts)
    assert metrics is not None
    return find_shifts(rollouts, metrics.sequence_abs)


def _draw(tokens: int, seed: int) -> np.ndarray:
    return -np.random.default_rng(seed).exponential(0.6, tokens)


@pytest.mark.parametrize("distance", [-40, -1, 1, 3, 40])
def test_a_shift_is_measured_per_sequence(distance: int) -> None:
    made = []
    for seed in range(4):
        drawn = _draw(400, seed)
        moved = np.roll(drawn, distance) if seed == 2 else drawn
        made.append(Rollout(list(range(402)), 2, drawn.tolist(), (moved - 0.001).tolist()))
    search = _search(build_rollouts(made))
    assert search.suspicious == (2,)
    (shift,) = search.shifts
    assert (shift.sequences, shift.tokens, shift.begin) == ((2,), distance, 0)
    assert shift.shifted < 0.01 < 0.1 < shift.unshifted


def test_a_list_without_the_text_of_a_tool_is_moved_from_there_on() -> None:
    trainer = _draw(300, 0)
    engine = np.concatenate([trainer[:100], trainer[120:], np.zeros(20)])
    mask = [True] * 100 + [False] * 20 + [True] * 180
    search = _search(build_rollouts([Rollout(list(range(302)), 2, engine.tolist(), trainer.tolist(), mask=mask)]))
    (shift,) = search.shifts
    assert shift.tokens == 20
    assert 100 <= shift.begin - 2 < 140


def test_shifts_stay_within_sequences_and_short_ones_are_put_together() -> None:
    made = []
    for seed in range(8):
        drawn = _draw(9, seed)
        made.append(Rollout(list(range(10)), 1, [*drawn[:-1].tolist(), -5.0], [-7.0, *drawn[:-1].tolist()]))
    (shift,) = _search(build_rollouts(made)).shifts
    assert (shift.tokens, shift.pairs, shift.shifted) == (1, 64, 0.0)
    assert shift.sequences == tuple(range(8))


def test_what_is_not_finite_is_left_out() -> None:
    drawn = _draw(100, 0)
    moved = np.roll(drawn, 1)
    drawn[30] = moved[50] = -np.inf
    (shift,) = _search(build_rollouts([Rollout(list(range(102)), 2, drawn.tolist(), moved.tolist())])).shifts
    assert (shift.tokens, shift.pairs) == (1, 99 - 4)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.5, 3.0])
def test_noise_is_no_shift(noise: float) -> None:
    made = []
    for seed in range(16):
        drawn = _draw(200, seed)
        moved = drawn + noise * np.random.default_rng(seed).standard_t(2, 200)
        moved[seed * 7] -= 500 * noise
        made.append(Rollout(list(range(202)), 2, drawn.tolist(), np.minimum(moved, 0).tolist()))
    assert not _search(build_rollouts(made)).shifts


def test_one_unlikely_token_is_no_shift() -> None:
    drawn = _draw(64, 0)
    scored = drawn.copy()
    scored[0] = -500
    assert not _search(build_rollouts([Rollout(list(range(66)), 2, drawn.tolist(), scored.tolist())])).shifts
