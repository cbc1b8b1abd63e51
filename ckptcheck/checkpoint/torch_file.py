"""Reads what a torch.save file holds, tensors included, without torch and without executing anything in it.

For files of people's own making, dumps and rollouts: plain values as they are, tensors as numpy arrays. Only storages on which a
tensor lies are read.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.megatron.stand_ins import StoredTensor, bytes_of, known, load_persistent
from ckptcheck.checkpoint.megatron.tensor import numpy_dtype, width
from ckptcheck.checkpoint.torch_archive import Archive, UnreadableArchive, open_archive
from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEEP = 64
"""Containers within containers that are followed."""


def read_torch(path: Path) -> Any:
    """Return the object: dictionaries, lists, plain values, and arrays for tensors (bfloat16 comes as float32).

    Raises CkptcheckError with one sentence where it is no torch.save file, is broken, or needs a name that no data needs.
    """
    try:
        with path.open("rb") as file:
            descriptor = file.fileno()

            def read(start: int, length: int) -> bytes:
                return os.pread(descriptor, length, start)

            archive = open_archive(read, os.fstat(descriptor).st_size)
            value, foreign = archive.describe(known, load_persistent)
            if foreign:
                raise UnreadableArchive(f"it names {foreign[0]}, which no data needs, and it is not run")
            return _plain(value, archive, descriptor, 0)
    except UnreadableArchive as error:
        raise CkptcheckError(f"{path} cannot be read: {error}") from None
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from None


def _plain(value: Any, archive: Archive, descriptor: int, depth: int) -> Any:
    if depth > DEEP:
        raise UnreadableArchive("its containers are nested too deep")
    if isinstance(value, StoredTensor):
        return _array(value, archive, descriptor)
    if isinstance(value, dict):
        return {key: _plain(entry, archive, descriptor, depth + 1) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(entry, archive, descriptor, depth + 1) for entry in value)
    return value


def _array(tensor: StoredTensor, archive: Archive, descriptor: int) -> NDArray[Any]:
    import numpy as np

    if archive.big_endian:
        raise UnreadableArchive("it was written on a big-endian machine")
    record = archive.records.get(tensor.record)
    size, each = bytes_of(tensor), width(tensor.dtype)
    if record is None or tensor.skip * each + size > record.length:
        raise UnreadableArchive("a tensor reaches beyond its storage")
    if prod(tensor.shape) * each > size:
        raise UnreadableArchive("a tensor repeats its elements")  # a few bytes could fill the memory
    if not size:
        return np.empty(tensor.shape, np.float32 if tensor.dtype == "BF16" else numpy_dtype(tensor.dtype))
    raw = os.pread(descriptor, size, record.begin + tensor.skip * each)
    flat = np.frombuffer(raw, numpy_dtype(tensor.dtype))
    strides = [step * each for step in tensor.stride]
    found = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
    if tensor.dtype == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return np.array(found)
