"""What makes the same weights change alike in every trainer and every layout: noise by name, and Adam's constants."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

DECAY = 1.0
"""Weight decay of Adam, so strong that a row without gradient (a token that does not occur, an idle expert) moves as well."""
EPSILON = 1e-5
"""Of Adam. With the usual 1e-8, numbers whose gradient is rounding noise would take a full step in a direction that depends
on the layout."""


def noise(name: str, shape: Sequence[int], seed: int) -> Any:
    """Return standard normal numbers, float32 on the CPU, that depend on the Hugging Face name and the seed only."""
    mixed = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(mixed), dtype=torch.float32)


def shaken(weight: Any, scale: float, drawn: Any) -> Any:
    """Return weight × (1 + scale × noise), computed in float32 and rounded once to the weight's dtype."""
    return (weight.float() * (1 + scale * drawn.to(weight.device))).to(weight.dtype)


def token_weights(sequences: Sequence[Sequence[int]], seed: int) -> list[Any]:
    """Return how much each token after the first counts in a step's loss, between 0.5 and 1.5: what a seed changes."""
    generator = torch.Generator().manual_seed(seed)
    return [0.5 + torch.rand(len(sequence) - 1, generator=generator) for sequence in sequences]
