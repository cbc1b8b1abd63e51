"""Writes tensors to safetensors files and reads them; an address says where (see ckptcheck's process/exchange.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

MEDIA = ("file", "memory")


def write_tensors(tensors: dict[str, Any], address: dict[str, str]) -> dict[str, Any]:
    """Write torch tensors (any shape and dtype that safetensors has) to an address; return it with tensor and byte counts.

    A reader never sees a partial file. Tensors that share memory, as tied weights do, are each written. Raises ValueError for
    an address that is no file.
    """
    from safetensors.torch import save_file

    path = _path(address)
    storages: set[int] = set()
    contiguous = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        alone = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes and storage.data_ptr() not in storages
        storages.add(storage.data_ptr())
        contiguous[name] = tensor.detach() if alone else tensor.detach().contiguous().clone()
    # transformers only loads files whose metadata names the format
    save_file(contiguous, f"{path}.part", {"format": "pt"})
    os.replace(f"{path}.part", path)
    return {**address, "tensors": len(contiguous), "bytes": sum(tensor.nbytes for tensor in contiguous.values())}


def read_tensors(file: dict[str, Any]) -> dict[str, Any]:
    """Return the torch tensors that `write_tensors` wrote, on the CPU. Raises ValueError if their number differs."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(_path(file))
    if len(tensors) != file["tensors"]:
        raise ValueError(f"{file['path']} holds {len(tensors)} tensors, but {file['tensors']} were written")
    return tensors


def read_bucket(bucket: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of a bucket in the order in which it is sent."""
    tensors = read_tensors(bucket["address"])
    for name in bucket["names"]:
        yield name, tensors[name]


def _path(address: dict[str, Any]) -> str:
    if address["kind"] not in MEDIA:
        raise ValueError(
            f"tensors are not written to files over {address['kind']}; only {' and '.join(MEDIA)} are files"
        )
    return str(address["path"])
