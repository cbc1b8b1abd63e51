"""What the cases of the Megatron rules do to a checkpoint, beside what all cases may do."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.megatron.folders import DiskTree
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor import Item
from ckptcheck.checkpoint.megatron.tensor_reader import locate_chunk
from tests.factories import dcp
from tests.factories.case_table import StrictTable


class ContentsChange(StrictTable, kw_only=True):
    """Changes to the table of contents, .metadata; in the patterns a whole name has to match."""

    drop: list[str] = []
    """Patterns of the names of tensors and objects to remove."""
    copy: dict[str, str] = {}
    """Pattern of names → the name of a copy, as in re.sub."""
    shape: dict[str, list[int]] = {}
    """Tensor → its new shape."""
    drop_chunks: dict[str, list[int]] = {}
    """Tensor → numbers of the chunks to remove."""
    boxes: dict[str, list[tuple[int, list[int], list[int]]]] = {}
    """Tensor → (number, offsets, sizes) of chunks to place elsewhere."""
    unplaced: dict[str, int] = {}
    """Tensor → the number of the chunk that lies in no file."""
    file: dict[str, str] = {}
    """Tensor → the file in which its chunks shall lie."""


class ChunkChange(StrictTable, kw_only=True):
    """Bytes of a chunk to overwrite: one of hex, zeros, zero and twin."""

    chunk: int = 0
    """The number of the chunk."""
    at: int = 0
    """The first byte."""
    hex: str = ""
    """The new bytes."""
    zeros: int = 0
    """How many bytes become zero."""
    zero: bool = False
    """Every byte becomes zero."""
    twin: tuple[str, int] | None = None
    """The tensor and the number of the chunk whose bytes it gets."""
    crc: bool = True
    """Whether the checksum of the archive is written anew."""


def edit(folder: Path, table: Mapping[str, Any]) -> None:
    """Apply `contents`, `arguments` and `elements` of a case, see `CheckpointChanges`."""
    if "contents" in table:
        for path in folder.rglob(".metadata"):
            contents = dcp.read_table(path)
            _edit_contents(contents, table["contents"])
            dcp.write_metadata(path, contents)
    for name, value in table.get("arguments", {}).items():
        for path in [*folder.rglob("common.pt"), *folder.rglob("model_optim_rng.pt")]:
            if not isinstance(value, dict) or path.parent.name in value:
                _edit_argument(path, name, value[path.parent.name] if isinstance(value, dict) else value)
    for key, changes in table.get("elements", {}).items():
        for change in changes:
            if key != "*":
                _edit_elements(folder, key, change)
                continue
            for name, tensor in Megatron(DiskTree(folder, str(folder))).weights.items():
                for number in range(len(tensor.chunks)):
                    _edit_elements(folder, name, {**change, "chunk": number})


def _edit_contents(contents: dcp.Table, edits: dict[str, Any]) -> None:
    for pattern in edits.get("drop", []):
        for group in (contents.shapes, contents.dtypes, contents.chunks, contents.objects):
            for key in [key for key in group if re.fullmatch(pattern, key)]:
                del group[key]
    for key, new in edits.get("copy", {}).items():
        for group in (contents.shapes, contents.dtypes, contents.chunks, contents.objects):
            for old in [old for old in group if re.fullmatch(key, old)]:
                group[re.sub(key, new, old)] = group[old]
    for key, shape in edits.get("shape", {}).items():
        contents.shapes[key] = tuple(shape)
    for key, numbers in edits.get("drop_chunks", {}).items():
        contents.chunks[key] = [chunk for n, chunk in enumerate(contents.chunks[key]) if n not in numbers]
    for key, boxes in edits.get("boxes", {}).items():
        for number, offsets, sizes in boxes:
            contents.chunks[key][number] = (tuple(offsets), tuple(sizes), contents.chunks[key][number][2])
    for key, number in edits.get("unplaced", {}).items():
        offsets, sizes, _ = contents.chunks[key][number]
        contents.chunks[key][number] = (offsets, sizes, None)
    for key, file in edits.get("file", {}).items():
        contents.chunks[key] = [
            (offsets, sizes, Item(file, item.begin, item.length))
            for offsets, sizes, item in contents.chunks[key]
            if item
        ]


def _edit_argument(path: Path, name: str, value: int | bool) -> None:
    """Change an argument that takes one byte in the pickle: a number below 256, a truth value."""
    raw = bytearray(path.read_bytes())
    at = raw.index(struct.pack("<I", len(name)) + name.encode()) + 4 + len(name)
    at += {0x71: 2, 0x72: 5}.get(raw[at], 0)  # the name's place in the memo
    if isinstance(value, bool):
        assert raw[at] in (0x88, 0x89)
        raw[at] = 0x88 if value else 0x89
    else:
        assert raw[at] == 0x4B, (name, raw[at])
        raw[at + 1] = value
    path.write_bytes(raw)
    _mend(path, 0, len(raw))


def _edit_elements(folder: Path, key: str, change: dict[str, Any]) -> None:
    """Change the bytes of a chunk as `ChunkChange` says."""
    run = Megatron(DiskTree(folder, str(folder)))
    path, begin, nbytes = _chunk(run, folder, key, change.get("chunk", 0))
    raw = bytearray(path.read_bytes())
    if "twin" in change:
        other, start, length = _chunk(run, folder, *change["twin"])
        assert length == nbytes
        new = other.read_bytes()[start : start + length]
    elif "hex" in change:
        new = bytes.fromhex(change["hex"])
    else:
        new = bytes(nbytes if change.get("zero") else change["zeros"])
    at = begin + change.get("at", 0)
    raw[at : at + len(new)] = new
    path.write_bytes(raw)
    if change.get("crc", True):
        chunk = (run.tensors[key] if key in run.tensors else run.weights[key]).chunks[change.get("chunk", 0)]
        assert chunk.item is not None
        _mend(path, chunk.item.begin, chunk.item.length)


def _chunk(run: Megatron, folder: Path, key: str, number: int = 0) -> tuple[Path, int, int]:
    tensor = run.tensors[key] if key in run.tensors else run.weights[key]
    found = locate_chunk(run.source, tensor.chunks[number], tensor.dtype, run.item_folder)
    return folder / found.name, found.begin, found.nbytes


def _mend(path: Path, begin: int, length: int) -> None:
    """Write the checksums of an archive anew."""
    raw = bytearray(path.read_bytes())
    whole = bytes(raw[begin : begin + length])
    import io

    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        directory = archive.start_dir
        for member in archive.infolist():
            name = member.filename.encode()
            head = member.header_offset
            start = head + 30 + int.from_bytes(whole[head + 26 : head + 28], "little")
            start += int.from_bytes(whole[head + 28 : head + 30], "little")
            crc = zlib.crc32(whole[start : start + member.file_size])
            at = begin + whole.index(name, directory) - 46
            assert raw[at : at + 4] == b"PK\x01\x02"
            raw[at + 16 : at + 20] = struct.pack("<I", crc)
    path.write_bytes(raw)
