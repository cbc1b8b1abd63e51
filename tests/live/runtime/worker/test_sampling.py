"""What a trainer draws: the same cut of the vocabulary that engines make."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ckptcheck.live.runtime.worker.ckptcheck_worker.sampling import sample_token  # noqa: E402

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()[torch.tensor([2, 0, 3, 1])]
"""Probabilities 0.15, 0.5, 0.1, 0.25."""


@pytest.mark.parametrize(("top_p", "top_k", "kept"), [
    (1.0, 0, {0, 1, 2, 3}), (1.0, 2, {1, 3}), (0.5, 0, {1}), (0.51, 0, {1, 3}), (0.9, 0, {0, 1, 3}),
    (0.6, 2, {1}), (0.7, 2, {1, 3}), (1e-9, 0, {1}), (1.0, 99, {0, 1, 2, 3}),
])  # fmt: skip
def test_tokens_come_from_the_likeliest(top_p: float, top_k: int, kept: set[int]) -> None:
    """0.6 of the two likeliest is the first alone: it has two thirds of what they have."""
    die = torch.Generator().manual_seed(1)
    assert {sample_token(LOGITS, 1.0, die, top_p, top_k) for _ in range(300)} == kept


def test_a_seed_draws_the_same_whether_nothing_or_next_to_nothing_is_cut() -> None:
    one, two = (torch.Generator().manual_seed(3) for _ in range(2))
    assert [sample_token(LOGITS, 0.7, one) for _ in range(50)] == [
        sample_token(LOGITS, 0.7, two, 1.0, 4) for _ in range(50)
    ]
