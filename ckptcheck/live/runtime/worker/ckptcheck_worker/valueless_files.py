"""Lets loaders read safetensors files without their values: each tensor has its name, dtype and shape, and a large
one takes no memory.

Importing this module replaces ``safetensors.safe_open``, so import it before the library of the loader. The real
`safe_open` still opens each file, and refuses the same headers as ever.
"""

from __future__ import annotations

import math
from typing import Any

import safetensors
import safetensors.torch
import torch

from .outside_files import require_inside

MOST_ZEROS = 1 << 16
"""A tensor of up to this many elements holds zeros, because loaders compute with scales and norms. A larger one is on
the meta device."""

last_read = ""
"""The tensor that the loader read last; a loader that takes one after the other is busy with it."""
_unread: set[str] = set()
"""Number of tensors in the opened files that the loader has not read."""
_last_shape: tuple[int, ...] = ()

_open_file = safetensors.safe_open
_DTYPES: dict[str, torch.dtype] = safetensors.torch._TYPES


def describe_last_read() -> str:
    """Return the name and the shape of the tensor that a loader is busy with; "" if it has read none, or all."""
    return f"{last_read}, {list(_last_shape)}" if last_read and _unread else ""


class ValuelessFile:
    """The result of `safetensors.safe_open`, without the values."""

    def __init__(self, filename: Any, *_: Any, **__: Any) -> None:
        require_inside(filename)  # it is read in Rust
        # numpy: torch would map the file as memory of its own, and count it
        self._file = _open_file(filename, framework="numpy")
        _unread.update(self._file.keys())

    def __enter__(self) -> ValuelessFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)  # keys, offset_keys, metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor without values."""
        global last_read, _last_shape
        stored = self._file.get_slice(name)
        last_read, _last_shape = name, tuple(stored.get_shape())
        _unread.discard(name)
        return create_tensor(stored)

    def get_slice(self, name: str) -> ValuelessSlice:
        """Return a slice, which makes the tensor when the loader indexes it."""
        return ValuelessSlice(self._file.get_slice(name))


class ValuelessSlice:
    """The result of ``safe_open(…).get_slice``, without the values."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)  # get_shape, get_dtype

    def __getitem__(self, key: Any) -> torch.Tensor:
        return create_tensor(self._real)[key]


def create_tensor(stored: Any) -> torch.Tensor:
    """Return a tensor without values of the shape and dtype of a slice. Raises ValueError for a dtype that torch lacks."""
    shape, name = tuple(stored.get_shape()), stored.get_dtype()
    if name not in _DTYPES:
        raise ValueError(f"this torch has no dtype for the {name} of safetensors")
    if math.prod(shape) > MOST_ZEROS:
        return torch.empty(shape, dtype=_DTYPES[name], device="meta")
    return torch.zeros(math.prod(shape), dtype=torch.uint8, device="cpu").to(_DTYPES[name]).reshape(shape)


for _module in (safetensors, safetensors.torch):
    _module.safe_open = ValuelessFile
