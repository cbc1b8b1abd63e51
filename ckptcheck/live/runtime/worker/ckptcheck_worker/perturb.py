"""Noise by tensor name and Adam's constants: with them the same weights change equally in every trainer and layout."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

WEIGHT_DECAY = 1.0
"""Weight decay of Adam, strong enough to move a row without gradient too (a token that does not occur, an idle expert)."""
ADAM_EPSILON = 1e-5
"""Epsilon of Adam. With the usual 1e-8, a weight whose gradient is rounding noise would take a full step in a direction that
depends on the layout."""


def noise(name: str, shape: Sequence[int], seed: int) -> Any:
    """Return standard normal numbers, float32 on the CPU, that depend only on the Hugging Face name and the seed."""
    mixed = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(mixed), dtype=torch.float32)


def apply_noise(weight: Any, scale: float, drawn: Any) -> Any:
    """Return weight × (1 + scale × noise), computed in float32 and rounded once to the weight's dtype."""
    return (weight.float() * (1 + scale * drawn.to(weight.device))).to(weight.dtype)


def token_weights(sequences: Sequence[Sequence[int]], seed: int) -> list[Any]:
    """Return the weight of each token after the first in a step's loss, between 0.5 and 1.5: the seed changes only these."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 + torch.rand(len(sequence) - 1, generator=generator) for sequence in sequences]
