"""Puts tensors on a data plane and takes them off; the plane is named by the address (see ckptcheck's host/exchange.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

FILES = ("file", "memory")


def put(tensors: dict[str, Any], address: dict[str, str]) -> dict[str, Any]:
    """Write torch tensors (any shape and dtype that safetensors has) to an address and return the parcel.

    A reader never sees half of it. Tensors that share memory, as tied weights do, are written once each. Raises
    ValueError for a plane that is not known here.
    """
    from safetensors.torch import save_file

    path = _file(address)
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        plain = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes and storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        own[name] = tensor.detach() if plain else tensor.detach().contiguous().clone()
    save_file(own, f"{path}.part", {"format": "pt"})  # transformers loads no file that does not say so
    os.replace(f"{path}.part", path)
    return {**address, "tensors": len(own), "bytes": sum(tensor.nbytes for tensor in own.values())}


def get(parcel: dict[str, Any]) -> dict[str, Any]:
    """Return the torch tensors of a parcel, on the CPU. Raises ValueError when they are not what was put there."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(_file(parcel))
    if len(tensors) != parcel["tensors"]:
        raise ValueError(f"{parcel['path']} holds {len(tensors)} tensors, and {parcel['tensors']} were put there")
    return tensors


def opened(bucket: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of a bucket as a near side says it, in the order in which it is sent."""
    found = get(bucket["address"])
    for name in bucket["names"]:
        yield name, found[name]


def _file(address: dict[str, Any]) -> str:
    if address["plane"] not in FILES:
        raise ValueError(f"the plane {address['plane']} is not known here; known are {', '.join(FILES)}")
    return str(address["path"])
