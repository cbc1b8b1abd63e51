"""Noise by name, so that the same weights change alike in every trainer and every layout."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch


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
