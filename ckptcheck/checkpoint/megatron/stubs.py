"""Provides stubs for the globals in a torch.save pickle: tensors become descriptions, other objects become records.

This module knows the globals that a checkpoint needs; the unpickler records any other as unexpected. No global is imported.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ckptcheck.checkpoint.megatron.tensor import STORAGES, TORCH_DTYPES, itemsize
from ckptcheck.checkpoint.unpickle import (
    MAX_AXES,
    CallableStub,
    FrozenMeta,
    ObjectStub,
    SizeStub,
    UnreadablePickle,
    make_stub,
)

ORDINARY = frozenset(
    (
        ("argparse", "Namespace"),
        ("builtins", "set"),
        ("builtins", "slice"),
        ("builtins", "complex"),
        ("datetime", "timedelta"),
        ("datetime", "datetime"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("signal", "Signals"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("numpy._core.numeric", "_frombuffer"),
        ("_io", "BytesIO"),
        ("io", "BytesIO"),
        ("torch", "device"),
        ("torch", "strided"),
        ("torch", "Generator"),
        ("torch.serialization", "_get_layout"),
        ("torch._C._nn", "gelu"),
        ("torch._C._nn", "silu"),
    )
)
"""Globals of arguments, states of random generators and the like."""
OWN = re.compile(
    r"(megatron|nemo|nemo_rl|nemo_automodel|transformer_engine|omegaconf|transformers|verl|mcore_adapter|slime|roll|swift)\."
)
"""Modules whose classes trainers store in their arguments: enums, configs."""
FUNCTIONS = re.compile(r"torch\.nn\.(functional|init)$|megatron\.core\.(activations|utils|fusions\.\w+)$")
"""Modules whose functions are stored as settings, such as an activation."""


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as data.pkl describes it."""

    dtype: str
    """Name of safetensors for the dtype."""
    record: str
    """The record of the archive that holds its storage."""
    skip: int
    """Number of elements in front of it in the storage."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Steps along each axis, in elements."""

    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie in C order without a gap."""
        due = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != due:
                return False
            due *= size
        return True


class Storage(msgspec.Struct, frozen=True):
    """A storage that a persistent id names."""

    dtype: str
    record: str


class StorageType(msgspec.Struct, frozen=True):
    """A class of storages, which determines the dtype."""

    name: str


class MappingStub(dict[Any, Any], metaclass=FrozenMeta):
    """Stands for OrderedDict and similar classes; keeps the entries and drops other state."""

    def __init__(self, *arguments: Any) -> None:
        if any(type(argument) in (dict, MappingStub, list, tuple) and argument for argument in arguments):
            raise UnreadablePickle("it copies one mapping into another")  # again and again, it would fill the memory
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Drop it."""


def load_persistent(pid: Any) -> Any:
    """Return the storage that a persistent id of torch.save names."""
    if (
        type(pid) is tuple
        and len(pid) == 5
        and pid[0] == "storage"
        and type(pid[1]) is StorageType
        and type(pid[2]) is str
    ):
        return Storage(STORAGES[pid[1].name], f"data/{pid[2]}")
    raise UnreadablePickle("it names a storage in a way that torch.save does not")


def stub_for(module: str, name: str) -> Any:
    """Return the stub for a global of a torch.save file; None for a global that no checkpoint needs."""
    if module == "torch" and name in TORCH_DTYPES:
        return TORCH_DTYPES[name]
    if module in ("torch", "torch.storage") and name in STORAGES:
        return StorageType(name)
    if (module, name) in _MADE:
        return _MADE[module, name]
    if (module, name) in ORDINARY or (OWN.match(module) and name[:1].isupper()) or FUNCTIONS.match(module):
        return make_stub(module, name)
    return None


def plain_arguments(value: Any) -> dict[str, Any]:
    """Return the plain values among the attributes of a pickled Namespace, or among the entries of a mapping.

    Short lists of plain values are kept too, dtypes by their name, enums by their value.
    """
    state = value.state if isinstance(value, ObjectStub) else value
    if not isinstance(state, dict):
        return {}
    arguments = {}
    for key, entry in state.items():
        if isinstance(entry, ObjectStub) and len(entry.arguments) == 1:
            entry = entry.arguments[0]
        if type(key) is str and (
            _plain(entry) or (type(entry) is list and len(entry) < 4096 and all(map(_plain, entry)))
        ):
            arguments[key] = entry
    return arguments


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def _rebuild(storage: Any, skip: Any, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    """Stand for torch._utils._rebuild_tensor_v2 and, with a dtype among the rest, _v3."""
    if type(storage) is not Storage or type(skip) is not int or type(shape) is not tuple or type(stride) is not tuple:
        raise UnreadablePickle("it describes a tensor in a way that torch.save does not")
    numbers = (skip, *shape, *stride)
    if (
        len(shape) != len(stride)
        or len(shape) > MAX_AXES
        or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers)
    ):
        raise UnreadablePickle("it describes an impossible tensor")
    dtype = next(
        (dtype_argument for dtype_argument in rest if type(dtype_argument) is str and dtype_argument in _DTYPES),
        storage.dtype,
    )
    return StoredTensor(dtype, storage.record, skip, shape, stride)


def _first(*arguments: Any) -> Any:
    """Stand for a wrapper of a tensor: return its first argument, as a parameter's data."""
    return arguments[0] if arguments else None


def _nothing(*_: Any) -> bytes:
    """Stand for codecs.encode, by which numpy's bytes are pickled; ckptcheck does not need them."""
    return b""


_DTYPES = frozenset(TORCH_DTYPES.values())
_MADE: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): CallableStub(_rebuild),
    ("torch._utils", "_rebuild_tensor_v2"): CallableStub(_rebuild),
    ("torch._utils", "_rebuild_tensor_v3"): CallableStub(_rebuild),
    ("torch._utils", "_rebuild_parameter"): CallableStub(_first),
    ("torch._utils", "_rebuild_parameter_with_state"): CallableStub(_first),
    ("torch", "Size"): SizeStub,
    ("_codecs", "encode"): CallableStub(_nothing),
    ("collections", "OrderedDict"): MappingStub,
    ("collections", "defaultdict"): MappingStub,
    ("collections", "Counter"): MappingStub,
}


def find_typed_tensor(value: Any) -> Any:
    """Return the tensor that a call of `torch._tensor._rebuild_from_type_v2` wraps, any other value unchanged.

    `torch.save` writes so a tensor with extra attributes, such as DeepSpeed's `ds_id`. Raises UnreadablePickle.
    """
    if isinstance(value, ObjectStub) and value.name.endswith("._rebuild_from_type_v2") and len(value.arguments) == 4:
        arguments = value.arguments[2]
        if isinstance(arguments, tuple) and arguments:
            if isinstance(arguments[0], StoredTensor):
                return arguments[0]
            if isinstance(arguments[0], Storage) and len(arguments) >= 4:
                return _rebuild(*arguments)
    return value


def storage_span(tensor: StoredTensor) -> int:
    """Return the number of bytes from the first to the last element of a tensor in its storage."""
    if 0 in tensor.shape:
        return 0
    return (sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True)) + 1) * itemsize(
        tensor.dtype
    )
