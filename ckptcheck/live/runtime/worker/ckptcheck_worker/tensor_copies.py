"""Copies of a few bytes of many tensors, which are read after the tensors have changed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from ctypes import string_at
from typing import Any

PIECE = 1 << 14
"""Elements that torch casts without threads of its own, which the job's step needs."""


@functools.cache
def has_plain_memory(kind: Any) -> bool:
    """Return whether tensors of a type are nothing but memory, as those of torch and of its parameters are.

    The parameters of vLLM are such too: of torch's two doors for subclasses they use only that for functions, which adds nothing to
    what is read of them. A type with the other door (`__torch_dispatch__`) may keep its elements anywhere.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return issubclass(kind, torch.Tensor) and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def without_functions_of_classes() -> Any:
    """Return a context in which torch asks a tensor itself, and not the function that its class may have (`__torch_function__`)."""
    import torch

    return torch._C.DisableTorchFunctionSubclass()


def copy_from_host(tensor: Any, begin: int, nbytes: int) -> bytes | None:
    """Return bytes of a torch tensor in the host's memory, counted from its first element; None where there are none.

    A view and a copy by torch take three times as long: right after a sync has moved a whole model, what they need of torch's code
    is in no cache. tensor: its type `has_plain_memory`. begin, nbytes: bytes, as they lie in memory.
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
