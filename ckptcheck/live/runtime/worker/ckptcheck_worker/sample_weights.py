"""Makes the two sets of weights that the conformance kit sends by a transport of the user's own."""

from __future__ import annotations

from typing import Any


def draw(tensor: Any, seed: int) -> Any:
    """Return random values of a tensor's shape, dtype and device."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    if tensor.is_floating_point():
        values = torch.randn(tuple(tensor.shape), generator=generator)
    else:
        values = torch.randint(0, 2 if tensor.dtype == torch.bool else 100, tuple(tensor.shape), generator=generator)
    return values.to(device=tensor.device, dtype=tensor.dtype)


def alter(tensor: Any) -> Any:
    """Return the same tensor with other values everywhere."""
    import torch

    plain = tensor.detach()
    if plain.dtype == torch.bool:
        return ~plain
    if not plain.is_floating_point():
        return plain ^ 1
    return (plain.float() * 1.25 + 0.01).to(plain.dtype)
