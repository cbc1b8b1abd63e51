"""Exact KL, the temperature between two sides, shifts and routing, against numbers computed by hand."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest

from ckptcheck.rollouts import Rollout, build_rollouts
from ckptcheck.rollouts.metrics import distribution
from ckptcheck.rollouts.metrics.distribution import exact, measure_mass, temperature
from ckptcheck.rollouts.metrics.routing import compute_routing_disagreement
from ckptcheck.rollouts.metrics.sampling_distribution import penalize


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_exact_kl_by_hand() -> None:
    found = exact(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]]))
    assert found.engine_trainer == pytest.approx(0.5 * log(2) + 0.5 * log(2 / 3))
    assert found.trainer_engine == pytest.approx(0.25 * log(0.5) + 0.75 * log(1.5))
    assert found.engine_entropy == pytest.approx(log(2))
    assert found.trainer_entropy == pytest.approx(0.25 * log(4) + 0.75 * log(4 / 3))


def test_exact_kl_is_the_same_however_many_are_worked_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    q, p = (log_softmax(np.random.default_rng(seed).standard_normal((7, 10))) for seed in (0, 1))
    whole = exact(q, p)
    assert whole.engine_trainer == pytest.approx(float((np.exp(q) * (q - p)).sum(1).mean()))
    monkeypatch.setattr(distribution, "NUMBERS", 20)
    parts = exact(q, p)
    assert parts.positions == 7
    assert parts.trainer_engine == pytest.approx(whole.trainer_engine, rel=1e-12)


def test_an_impossible_token_makes_one_direction_infinite() -> None:
    found = exact(np.array([[0.0, -inf]]), np.log([[0.5, 0.5]]))
    assert found.engine_trainer == pytest.approx(log(2))
    assert found.trainer_engine == inf
    assert found.engine_entropy == 0


def test_logits_do_not_add_up() -> None:
    assert measure_mass(np.array([[0.0, 0.0], [-1.0, -inf]])) == pytest.approx((-1, log(2)))
    assert measure_mass(np.array([[0.0, 9.0]]), np.array([[3, -1]])) == (0, 0)
    assert measure_mass(np.array([[0.0, np.nan]])) == (inf, inf)


@pytest.mark.parametrize("wanted", [0.6, 1.0, 1.7])
def test_the_temperature_is_found_from_a_part_of_the_vocabulary(wanted: float) -> None:
    logits = np.random.default_rng(0).standard_normal((40, 1000)) * 3
    p, q = log_softmax(logits), log_softmax(logits / wanted)
    ids = np.argsort(-logits, 1)[:, :5]
    shuffled = ids[:, ::-1]  # the two sides need not list them in one order
    rows = np.arange(40)[:, None]
    found = temperature(ids, q[rows, ids], shuffled, p[rows, shuffled])
    assert found is not None
    assert found.temperature == pytest.approx(wanted)
    assert found.after == pytest.approx(0, abs=1e-12)
    assert found.pairs == 160


def test_too_little_in_common_for_a_temperature() -> None:
    ids = np.arange(40).reshape(10, 4)
    assert temperature(ids, -np.ones((10, 4)), ids + 100, -np.ones((10, 4))) is None
    assert temperature(ids[:5], -np.ones((5, 4)), ids[:5], -np.ones((5, 4))) is None  # 15 pairs
    padded = np.full((40, 4), -1)
    assert temperature(padded, -np.ones((40, 4)), padded, -np.ones((40, 4))) is None


def test_routing_compares_sets() -> None:
    one = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 2], [3, 4]]])
    other = np.array([[[2, 1], [3, 4]], [[5, 6], [7, 9]], [[-1, -1], [-1, -1]]])  # the last token is not known
    made = build_rollouts([Rollout([0, 1, 2], 1, [-1.0] * 2, [-1.0] * 2, engine_routing=one, trainer_routing=other)])
    found = compute_routing_disagreement(made)
    assert found is not None
    assert found[0].tolist() == [0.0, 0.5]
    assert found[1] == 2


def test_penalties_by_hand() -> None:
    """Repetition scales the logits of all that was there, prompt included; presence and frequency subtract for the response."""
    logits = np.array([[2.0, -1.0, 0.5, 3.0]] * 3)
    found = penalize(logits, [1, 1, 0], 0.5, 0.25, 2.0, prompt=[0])
    assert found.tolist() == [
        [1.0, -1.0, 0.5, 3.0],
        [1.0, -2.0 - 0.75, 0.5, 3.0],
        [1.0, -2.0 - 1.0, 0.5, 3.0],
    ]
    assert penalize(logits, [1, 1, 0], 0.0, 0.0).tolist() == logits.tolist()
