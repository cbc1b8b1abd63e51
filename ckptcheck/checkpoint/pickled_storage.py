"""Reads a tensor that a plain `pickle.dump` wrote: its storage is a torch.save file of the old kind, as bytes in the pickle.

The pickle calls ``torch.storage._load_from_bytes(bytes)``; the bytes are five pickles (a magic number, a version, the machine, the
storage's persistent id, the list of storages), the number of elements in 8 bytes, and the elements. Source: PyTorch 2.13
torch/storage.py (`TypedStorage.__reduce__`) and torch/serialization.py (`_legacy_save`).
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from typing import Any

from ckptcheck.checkpoint.megatron import stubs
from ckptcheck.checkpoint.megatron.stubs import StoredTensor
from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle

HEAD = 1 << 14
"""Bytes within which the five pickles end."""
PICKLES = 5
ID = 3
"""The pickle that holds the persistent id."""


@dataclass(frozen=True)
class PickledStorage:
    """A storage: the content of its persistent id, and its elements."""

    storage: Any
    elements: bytes


@dataclass(frozen=True)
class PickledTensor:
    """A tensor, and the bytes of its storage."""

    tensor: StoredTensor
    elements: bytes


def load_storage(raw: Any) -> PickledStorage:
    """Stand for `torch.storage._load_from_bytes`. Raises UnreadablePickle."""
    if type(raw) is not bytes:
        raise UnreadablePickle("it holds a storage that is no bytes")
    head, starts = raw[:HEAD], [0]
    try:
        for _ in range(PICKLES):
            part = io.BytesIO(head[starts[-1] :])
            for _opcode in pickletools.genops(part):
                pass
            starts.append(starts[-1] + part.tell())
    except (ValueError, IndexError, UnicodeError) as error:
        raise UnreadablePickle("it holds a storage that PyTorch does not write") from error
    described = unpickle(head[starts[ID] : starts[ID + 1]], stubs.stub_for, _load_persistent)
    return PickledStorage(described.value, raw[starts[PICKLES] + 8 :])


def _load_persistent(pid: Any) -> Any:
    """Return the storage of a persistent id of the old kind, which has a view at its end."""
    return stubs.load_persistent(pid[:5] if type(pid) is tuple else pid)


def rebuild_tensor(storage: Any, *rest: Any) -> StoredTensor | PickledTensor:
    """Stand for `torch._utils._rebuild_tensor_v2`, for both spellings of the storage. Raises UnreadablePickle."""
    build = stubs.stub_for("torch._utils", "_rebuild_tensor_v2")
    if not isinstance(storage, PickledStorage):
        tensor: StoredTensor = build(storage, *rest)
        return tensor
    return PickledTensor(build(storage.storage, *rest), storage.elements)
