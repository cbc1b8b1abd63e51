"""Copies of a few bytes of many tensors, for reading after the tensors have changed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from ctypes import string_at
from typing import Any

PIECE = 1 << 14
"""Elements that torch casts without further threads, because the job's step needs the cores."""


@functools.cache
def has_plain_memory(kind: Any) -> bool:
    """Return whether tensors of a type are plain memory, like torch's own tensors and parameters.

    vLLM's parameters are plain memory too: of torch's two hooks for subclasses they use only `__torch_function__`,
    which does not change the reads here. A type with the other hook (`__torch_dispatch__`) may keep its elements
    anywhere.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return issubclass(kind, torch.Tensor) and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def without_functions_of_classes() -> Any:
    """Return a context in which torch bypasses the `__torch_function__` that a tensor's class may have."""
    import torch

    return torch._C.DisableTorchFunctionSubclass()


def copy_from_host(tensor: Any, begin: int, nbytes: int) -> bytes | None:
    """Return bytes of a torch tensor in the host's memory, counted from its first element; None if there are none.

    A view and a copy by torch take three times as long: right after a sync has moved a whole model, torch's code for
    them is in no cache. tensor: its type `has_plain_memory`. begin, nbytes: bytes, as they lie in memory.
    """
    if not tensor.is_cpu:
        return None
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    begin += tensor.storage_offset() * tensor.element_size()
    # a storage may be emptied while its tensors stay, as FSDP does
    return string_at(address + begin, nbytes) if address and begin + nbytes <= storage.nbytes() else None


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


def view_bytes(copy: Any) -> Any:
    """Return the bytes of a copy as a numpy array, without copying them.

    copy: bytes, or a contiguous torch tensor in the host's memory.
    """
    if isinstance(copy, bytes):
        import numpy

        return numpy.frombuffer(copy, numpy.uint8)
    import torch

    return copy.view(-1).view(torch.uint8).numpy()


def cast_pieces(copy: Any, dtype: Any, cast: Any) -> Iterator[Any]:
    """Yield the bytes of a copy in the host's memory, cast, in pieces of a few elements, as numpy arrays.

    copy: contiguous, a tensor of torch's `dtype` or its bytes as `copy_from_host` or `move_to_host` returns them. cast: another
    dtype of torch.
    """
    if isinstance(copy, bytes):
        import torch

        copy = torch.frombuffer(bytearray(copy), dtype=dtype)
    flat = copy.view(-1)
    if flat.dtype != dtype:
        flat = flat.clone().view(dtype)  # bytes of a shared transfer may begin anywhere
    for piece in flat.split(PIECE):
        yield view_bytes(piece.to(cast))
