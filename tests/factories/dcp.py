"""Writes pickles and `.metadata` files opcode by opcode, without torch: whole, and as no program would write them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.megatron.dcp import read_contents
from ckptcheck.checkpoint.megatron.tensor import TORCH_DTYPES, GlobalTensor, Item

METADATA = "torch.distributed.checkpoint.metadata"
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass
class Global:
    module: str
    name: str


@dataclass
class Call:
    """A global that is called (REDUCE)."""

    what: Global
    arguments: tuple[Any, ...] = ()


@dataclass
class Instance:
    """An object of a class: NEWOBJ, and BUILD with the state."""

    what: Global
    state: Any = None
    arguments: tuple[Any, ...] = ()


@dataclass
class Raw:
    """Opcodes as they are, or what writes them when their turn comes."""

    code: bytes | Callable[[], bytes]


_MEMO: dict[tuple[str, str], int] | None = None
"""Globals written so far, while a pickle with a memo is written."""


def write_pickle(value: Any, *, memo: bool = False) -> bytes:
    """Write a pickle of protocol 4. memo: write each global once, as programs do."""
    global _MEMO
    _MEMO = {} if memo else None
    try:
        return b"\x80\x04" + write_opcodes(value) + b"."
    finally:
        _MEMO = None


def write_opcodes(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.code() if callable(value.code) else value.code
    if isinstance(value, Global):
        if _MEMO is not None and (value.module, value.name) in _MEMO:
            return b"j" + struct.pack("<I", _MEMO[value.module, value.name])
        written = write_opcodes(value.module) + write_opcodes(value.name) + b"\x93"
        if _MEMO is None:
            return written
        _MEMO[value.module, value.name] = len(_MEMO)
        return written + b"\x94"
    if isinstance(value, Call):
        return write_opcodes(value.what) + write_opcodes(value.arguments) + b"R"
    if isinstance(value, Instance):
        made = write_opcodes(value.what) + write_opcodes(value.arguments) + b"\x81"
        return made if value.state is None else made + write_opcodes(value.state) + b"b"
    if value is None or isinstance(value, (int, str)):
        return _write_atom(type(value), value)
    if isinstance(value, tuple):
        return b"(" + b"".join(map(write_opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(write_opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(write_opcodes(key) + write_opcodes(item) for key, item in value.items()) + b"u"
    raise TypeError(value)


@cache
def _write_atom(kind: type, value: Any) -> bytes:
    """Write a number, a text or None. kind: keeps True and 1 apart, which are equal; tables hold the same ones again and again."""
    if value is None or kind is bool:
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if kind is int:
        raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


@dataclass
class Table:
    """What a `.metadata` lists, to be changed. chunks: key → [(offsets, sizes, place)]."""

    dtypes: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    chunks: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Item | None]]] = field(default_factory=dict)
    objects: dict[str, Item | None] = field(default_factory=dict)


def read_table(path: Path) -> Table:
    found = read_contents(path.read_bytes())
    assert found.readable
    assert not found.defects
    table = Table(objects=dict(found.objects))
    for key, tensor in found.tensors.items():
        add(table, key, tensor)
    return table


def add(table: Table, key: str, tensor: GlobalTensor) -> None:
    table.dtypes[key], table.shapes[key] = tensor.dtype, tensor.shape
    table.chunks[key] = [(chunk.offsets, chunk.sizes, chunk.item) for chunk in tensor.chunks]


def size(numbers: tuple[int, ...]) -> Call:
    return Call(Global("torch", "Size"), (tuple(numbers),))


def table_value(table: Table, **extra: Any) -> Instance:
    """The Metadata object that lists this table."""

    def described(key: str) -> Instance:
        dtype = Global("torch", NAMES[table.dtypes[key]])
        properties = Instance(Global(METADATA, "TensorProperties"), (dtype, None, False, None, False))
        chunks = [
            Instance(Global(METADATA, "ChunkStorageMetadata"), {"offsets": size(offsets), "sizes": size(sizes)})
            for offsets, sizes, _ in table.chunks[key]
        ]
        state = {"properties": properties, "size": size(table.shapes[key]), "chunks": chunks}
        return Instance(Global(METADATA, "TensorStorageMetadata"), state)

    listed: dict[str, Any] = {key: described(key) for key in table.shapes}
    listed |= {key: Instance(Global(METADATA, "BytesStorageMetadata"), {}) for key in table.objects}
    places = [(key, size(at), item) for key, chunks in table.chunks.items() for at, _, item in chunks]
    places += [(key, None, item) for key, item in table.objects.items()]
    stored = Raw(
        lambda: (
            b"}("
            + b"".join(
                write_opcodes(Instance(Global(METADATA, "MetadataIndex"), {"fqn": key, "offset": at, "index": None}))
                + write_opcodes(
                    Instance(
                        Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                        {"relative_path": item.file, "offset": item.begin, "length": item.length},
                    )
                )
                for key, at, item in places
                if item is not None
            )
            + b"u"
        )
    )
    state = {"state_dict_metadata": listed, "planner_data": None, "storage_data": stored, **extra}
    return Instance(Global(METADATA, "Metadata"), state)


def write_metadata(path: Path, table: Table) -> None:
    path.write_bytes(write_pickle(table_value(table), memo=True))
