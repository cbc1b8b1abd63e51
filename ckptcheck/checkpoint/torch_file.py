"""Reads the object in a torch.save file or a pickle, tensors included, without torch and without executing anything in it.

It serves files that users write themselves: dumps and rollouts. Plain values stay as they are, tensors and numpy arrays become
numpy arrays, a TensorDict becomes a dictionary. It reads only the bytes under a tensor. Formats: torch/serialization.py;
numpy's `ndarray.__reduce__`; tensordict 0.15 `_reductions.py` (`_make_td`, and one storage for all leaves after
`consolidate()`).
"""

from __future__ import annotations

import io
import os
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.distributed_tensor import is_distributed_global, parse_distributed_tensor
from ckptcheck.checkpoint.megatron import stubs
from ckptcheck.checkpoint.megatron.stubs import StoredTensor, load_persistent, storage_span
from ckptcheck.checkpoint.megatron.tensor import itemsize, numpy_dtype
from ckptcheck.checkpoint.torch_archive import Archive, ArchiveRecord, UnreadableArchive, open_archive
from ckptcheck.checkpoint.unpickle import (
    MAX_PICKLE,
    CallableStub,
    Known,
    ObjectStub,
    UnreadablePickle,
    WalkBudget,
    make_stub,
    unpickle,
)
from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import open_regular_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMPY_KIND = re.compile(r"[|<>=]?[?a-zA-Z][0-9]{0,9}")
"""The spelling of a plain dtype. numpy parses longer spellings as a small language, which a hostile file could abuse."""
DEEP = 64
"""Deepest nesting of containers that is read."""

HEAD = 1 << 14
"""Bytes within which the five pickles end."""
PICKLES = 5
ID_PICKLE = 3
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
    """Stand for `torch.storage._load_from_bytes`, by which a plain `pickle.dump` spells a storage. Raises UnreadablePickle.

    The bytes are a torch.save file of the old kind: five pickles (a magic number, a version, the machine, the storage's persistent
    id, the list of storages), the number of elements in 8 bytes, and the elements. Source: PyTorch 2.13 torch/storage.py
    (`TypedStorage.__reduce__`) and torch/serialization.py (`_legacy_save`).
    """
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
    described = unpickle(head[starts[ID_PICKLE] : starts[ID_PICKLE + 1]], stubs.stub_for, _load_old_persistent)
    return PickledStorage(described.value, raw[starts[PICKLES] + 8 :])


def _load_old_persistent(pid: Any) -> Any:
    """Return the storage of a persistent id of the old kind, which has a view at its end."""
    return stubs.load_persistent(pid[:5] if type(pid) is tuple else pid)


def rebuild_tensor(storage: Any, *rest: Any) -> StoredTensor | PickledTensor:
    """Stand for `torch._utils._rebuild_tensor_v2`, for both spellings of the storage. Raises UnreadablePickle."""
    build = stubs.stub_for("torch._utils", "_rebuild_tensor_v2")
    if not isinstance(storage, PickledStorage):
        tensor: StoredTensor = build(storage, *rest)
        return tensor
    return PickledTensor(build(storage.storage, *rest), storage.elements)


def read_torch_file(path: Path) -> Any:
    """Return the object of a torch.save file or a plain pickle.

    Dictionaries, lists and plain values stay as they are; tensors become arrays (bfloat16 as float32), a DTensor becomes a
    `DistributedTensor`; an object of a trainer's class becomes an `ObjectStub` whose state is plain. Raises CkptcheckError
    with one sentence where the file is neither, is broken, or names a global that data does not need.
    """
    try:
        descriptor = open_regular_file(os.path.realpath(path))
        try:
            size = os.fstat(descriptor).st_size

            def read(start: int, length: int) -> bytes:
                return os.pread(descriptor, length, start)

            if read(0, 2) == b"PK":
                return _opened(read, size)
            return _pickled(read(0, min(size, MAX_PICKLE + 1)))
        finally:
            os.close(descriptor)
    except (UnreadableArchive, UnreadablePickle) as error:
        raise CkptcheckError(f"{path} cannot be read: {error}") from None
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from None


def read_torch_file_bytes(raw: bytes) -> Any:
    """Return the object of a torch.save file that is embedded in another file. Raises CkptcheckError."""
    try:
        return _opened(lambda start, length: raw[start : start + length], len(raw))
    except (UnreadableArchive, UnreadablePickle) as error:
        raise CkptcheckError(f"a torch.save file within it cannot be read: {error}") from None


def _opened(read: Callable[[int, int], bytes], size: int) -> Any:
    archive = open_archive(read, size)
    value, foreign = archive.describe(make_stubs(len(archive.pickle)), load_persistent)
    _refuse(foreign)
    return _convert(_Plain(read, archive, WalkBudget(len(archive.pickle)), WalkBudget(size)), value)


def _pickled(raw: bytes) -> Any:
    unpickled = unpickle(raw, make_stubs(len(raw)))
    _refuse(unpickled.unexpected_globals)
    empty = Archive({}, b"")
    return _convert(
        _Plain(lambda _start, _length: b"", empty, WalkBudget(len(raw)), WalkBudget(len(raw))), unpickled.value
    )


def _convert(converter: _Plain, value: Any) -> Any:
    """Return the plain form of an unpickled object. Raises UnreadableArchive and UnreadablePickle."""
    try:
        return converter.of(value)
    except (UnreadableArchive, UnreadablePickle, OSError):
        raise
    except Exception as error:  # a hostile pickle may describe anything at all
        raise UnreadableArchive(f"its content cannot be converted ({type(error).__name__})") from error


def _refuse(foreign: tuple[str, ...]) -> None:
    if foreign:
        raise UnreadableArchive(f"it names {foreign[0]}, which plain data does not need: it was not loaded")


_NAMED = frozenset(
    (
        ("tensordict._reductions", "_make_td"),
        ("tensordict._reductions", "_rebuild_tensordict_files_consolidated"),
        ("tensordict._td", "TensorDict"),
        ("tensordict", "TensorDict"),
    )
)
_OWN = re.compile(r"(miles|skyrl|skyrl_train|openrlhf|areal)\.")
"""Frameworks whose classes occur in rollouts; SkyRL's pickles also name the function that makes its batches."""
_ARRAY = frozenset(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core"))
_BUFFER = frozenset(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core"))
"""The functions by which protocol 5, the default since Python 3.14, makes arrays."""
_SCALAR = frozenset(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core"))


class _KnownGlobals:
    """The stubs for one pickle. They share a budget, because a pickle may make bytes from the same content again and again."""

    def __init__(self, size: int) -> None:
        self._budget = WalkBudget(size)
        self._own = {
            ("_codecs", "encode"): CallableStub(self._encode),
            ("__builtin__", "bytes"): CallableStub(_make_no_bytes),
            ("torch.storage", "_load_from_bytes"): CallableStub(self._load_storage),
            ("torch._utils", "_rebuild_tensor_v2"): CallableStub(rebuild_tensor),
        }

    def stub_for(self, module: str, name: str) -> Any:
        """Return the stub for a global; None for one that data does not need."""
        return self._own.get((module, name)) or _known(module, name)

    def _encode(self, text: Any, coding: Any = "utf-8") -> bytes:
        """Stand for codecs.encode, by which old pickles spell bytes."""
        if type(text) is not str or coding != "latin1":
            raise UnreadablePickle("it encodes bytes in a way that pickle does not")
        self._budget.spend(len(text))
        return text.encode("latin1")

    def _load_storage(self, raw: Any) -> PickledStorage:
        """Stand for `torch.storage._load_from_bytes`."""
        self._budget.spend(HEAD + len(raw) if type(raw) is bytes else 1)
        return load_storage(raw)


def make_stubs(size: int) -> Known:
    """Return the stubs for one pickle of this many bytes; they count the bytes that it makes."""
    return _KnownGlobals(size).stub_for


def _make_no_bytes() -> bytes:
    """Stand for `bytes()`, by which protocol 2 spells an empty value; with a number, `bytes` would allocate that many."""
    return b""


def _known(module: str, name: str) -> Any:
    if (module, name) in _NAMED or (_OWN.match(module) and (name[:1].isupper() or name == "_rebuild_tensor_batch")):
        return make_stub(module, name)
    if is_distributed_global(module, name):
        return make_stub(module, name)
    return stubs.stub_for(module, name)


class _Plain:
    """Converts an unpickled object into plain values."""

    def __init__(
        self, read: Callable[[int, int], bytes], archive: Archive, budget: WalkBudget, elements: WalkBudget
    ) -> None:
        self._read, self._archive, self._budget, self._elements = read, archive, budget, elements

    def of(self, value: Any, depth: int = 0) -> Any:
        if depth > DEEP:
            raise UnreadableArchive("its containers are nested too deep")
        self._budget.spend(len(value) if isinstance(value, (dict, list, tuple)) else 1)
        if isinstance(value, StoredTensor):
            return self._tensor(value)
        if isinstance(value, PickledTensor):
            elements = value.elements
            record = ArchiveRecord(0, len(elements), 0)
            archive = Archive({value.tensor.record: record}, b"")
            read_element = lambda start, length: elements[start : start + length]  # noqa: E731
            return _Plain(read_element, archive, self._budget, self._elements).of(value.tensor)
        if isinstance(value, dict):
            return {key: self.of(entry, depth + 1) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            # Most lists are long and hold only numbers.
            if all(type(entry) in (int, float, bool, str) for entry in value):
                return value
            return type(value)(self.of(entry, depth + 1) for entry in value)
        return self._record(value, depth) if isinstance(value, ObjectStub) else value

    def _record(self, value: ObjectStub, depth: int) -> Any:
        if value.name in _ARRAY:
            return _array(value, lambda entry: self.of(entry, depth + 1))
        if value.name in _BUFFER:
            return _buffered_array(value)
        if value.name in _SCALAR and len(value.arguments) == 2:
            return _elements(*value.arguments).reshape(-1)[0].item()
        if value.name.endswith("._make_td") and len(value.arguments) == 2 and isinstance(value.arguments[1], dict):
            return self.of(value.arguments[1].get("_tensordict", {}), depth + 1)
        if value.name.endswith("_files_consolidated"):
            return self._consolidated(value, depth)
        try:
            distributed = parse_distributed_tensor(value, lambda entry: self.of(entry, depth + 1))
        except (AttributeError, LookupError, TypeError, ValueError, StopIteration, OverflowError) as error:
            raise UnreadableArchive("its DTensor is not laid out as PyTorch does it") from error
        if distributed is not None:
            return distributed
        value.state = self.of(value.state, depth + 1)
        return value

    def _consolidated(self, value: ObjectStub, depth: int) -> dict[str, Any]:
        try:
            about, storage = value.arguments
            raw = self.of(storage, depth + 1).tobytes()
            leaves = {name: (str(leaf[0]).removeprefix("torch."), *leaf[1:4]) for name, leaf in about["leaves"].items()}
            return {name: leaf(raw[begin:end], kind, shape) for name, (kind, shape, begin, end) in leaves.items()}
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise UnreadableArchive("its TensorDict is not laid out as tensordict does it") from error

    def _tensor(self, tensor: StoredTensor) -> NDArray[Any]:
        import numpy as np

        if self._archive.big_endian:
            raise UnreadableArchive("it was written on a big-endian machine")
        record = self._archive.records.get(tensor.record)
        size, each = storage_span(tensor), itemsize(tensor.dtype)
        if record is None or tensor.skip * each + size > record.length:
            raise UnreadableArchive("a tensor reaches beyond its storage")
        if prod(tensor.shape) * each > size:
            # Repeated elements (stride 0) would let a few bytes fill the memory.
            raise UnreadableArchive("a tensor repeats its elements")
        # A few tied tensors may share a storage; a thousand views of a large one would fill the memory.
        self._elements.spend(size)
        if not size:
            return np.empty(tensor.shape, np.float32 if tensor.dtype == "BF16" else numpy_dtype(tensor.dtype))
        flat = np.frombuffer(self._read(record.begin + tensor.skip * each, size), numpy_dtype(tensor.dtype))
        strides = [step * each for step in tensor.stride]
        array = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        return _widened(array) if tensor.dtype == "BF16" else np.array(array)


def leaf(raw: bytes, kind: str, shape: Any) -> NDArray[Any]:
    """Return the array with these bytes, this torch dtype name and this shape. Raises ValueError, TypeError on a mismatch."""
    import numpy as np

    if kind == "bfloat16":
        return _widened(np.frombuffer(raw, "<u2")).reshape(shape)
    return np.frombuffer(raw, np.dtype(kind)).reshape(shape)


def _widened(patterns: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _array(value: ObjectStub, plain: Callable[[Any], Any]) -> Any:
    """Return a pickled numpy array; an array of objects as a list."""
    try:
        _, shape, dtype, fortran, data = value.state
        if dtype.arguments[0] in ("O8", "O"):
            return plain(list(data))
        return _elements(dtype, data).reshape(shape, order="F" if fortran else "C")
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise UnreadableArchive("an array is not laid out as numpy does it") from error


def _buffered_array(value: ObjectStub) -> NDArray[Any]:
    """Return an array that protocol 5 pickled: numpy/_core/numeric.py `_frombuffer`, with the order of its axes since numpy 2.3."""
    try:
        data, dtype, shape, order, *axes = value.arguments
        array = _elements(dtype, data)
        if order == "K" and axes and axes[0] is not None:
            return array.reshape(shape).transpose(axes[0])
        if order not in ("C", "F"):
            raise ValueError("another order of elements")
        return array.reshape(shape, order="F" if order == "F" else "C")
    except (TypeError, ValueError) as error:
        raise UnreadableArchive("an array is not laid out as numpy does it") from error


def _elements(dtype: Any, data: Any) -> NDArray[Any]:
    import numpy as np

    try:
        kind = str(dtype.arguments[0])
        if not NUMPY_KIND.fullmatch(kind):
            raise ValueError("a structured dtype")
        return np.frombuffer(data, np.dtype(f">{kind}" if dtype.state and dtype.state[1] == ">" else kind))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise UnreadableArchive("an array is not laid out as numpy does it") from error
