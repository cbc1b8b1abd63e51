"""A fault in a tensor that an engine holds. Runs in the engine's Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def flip_bit(tensors: Iterable[tuple[str, str, Any, str]], name: str, index: int, bit: int) -> None:
    """Flip a bit of a flat element. tensors: as `ckptcheck_worker.tensors.walk` yields them."""
    import torch

    with torch.inference_mode():
        tensor = next(tensor for own, _, tensor, _ in tensors if own == name)
        size = tensor.element_size()
        flat = tensor.detach().view(-1).view(torch.uint8)
        flat[index * size + bit // 8] ^= 1 << bit % 8
