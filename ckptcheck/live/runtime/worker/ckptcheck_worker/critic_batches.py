"""The batches on which a critic's two frameworks are compared, and its loss; both are the same in every process."""

from __future__ import annotations

from typing import Any

import torch

SIZE = 2
"""Sequences of a batch: one of full length, one that is padded."""


def make_batches(number: int, length: int, vocabulary: int, seed: int) -> list[dict[str, Any]]:
    """Return batches of tokens [2, length], a mask [2, length - 1] and returns [2, length - 1].

    The last quarter of the second sequence is padding. The mask leaves out padding, and the first two tokens as a prompt.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(number):
        tokens = torch.randint(0, vocabulary, (SIZE, length), generator=generator)
        present = torch.ones(SIZE, length, dtype=torch.bool)
        present[1, length - max(1, length // 4) :] = False
        mask = present[:, 1:].float()
        mask[:, :1] = 0.0
        batches.append(
            {
                "tokens": tokens * present,
                "present": present,
                "mask": mask,
                "returns": torch.randn(SIZE, length - 1, generator=generator),
            }
        )
    return batches


def shift_values(output: Any) -> Any:
    """Return the values of all tokens but the last: [batch, length, 1] → [batch, length - 1], as ROLL's critic worker does."""
    return output[:, :-1].squeeze(-1)


def value_loss(values: Any, batch: dict[str, Any]) -> Any:
    """Return half the squared error of values [batch, length - 1], each sequence over its mask (ROLL's ``CriticWorker``)."""
    error = (values - batch["returns"]) ** 2 * batch["mask"]
    return 0.5 * (error.sum(-1) / batch["mask"].sum(-1)).mean()
