"""Copies of a few bytes of many tensors, which are read after the tensors have changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

PIECE = 1 << 14
"""Elements that torch casts without threads of its own, which the job's step needs."""


def copy_tensor(tensor: Any) -> Any:
    """Return a contiguous copy of a torch tensor on its own device. On a GPU it is made in the order of the current stream."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.clone() if tensor.is_contiguous() else tensor.contiguous()


def move_to_host(copies: Sequence[Any]) -> list[Any]:
    """Return contiguous torch tensors of one device as bytes in the host's memory, by one transfer."""
    import torch

    parts = [copy.view(-1).view(torch.uint8) for copy in copies]
    return list(torch.cat(parts).cpu().split([len(part) for part in parts]))


def view_bytes(tensor: Any) -> Any:
    """Return the bytes of a contiguous torch tensor in the host's memory as a numpy array, without copying them."""
    import torch

    return tensor.view(-1).view(torch.uint8).numpy()


def cast_pieces(copy: Any, dtype: Any, cast: Any) -> Iterator[Any]:
    """Yield the bytes of a copy in the host's memory, cast, in pieces of a few elements, as numpy arrays.

    copy: contiguous, a tensor of torch's `dtype` or its bytes as `move_to_host` returns them. cast: another dtype of torch.
    """
    flat = copy.view(-1)
    if flat.dtype != dtype:
        flat = flat.clone().view(dtype)  # bytes of a shared transfer may begin anywhere
    for piece in flat.split(PIECE):
        yield view_bytes(piece.to(cast))
