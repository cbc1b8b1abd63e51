"""Reads the header of a safetensors file and records all that is wrong with it.

Format: https://github.com/huggingface/safetensors#format. 8 bytes N (unsigned, little-endian), N bytes of UTF-8 JSON
``{"name": {"dtype", "shape", "data_offsets": [begin, end]}, …, "__metadata__": {str: str}}``, then the data, which the
tensors cover without gap or overlap. `safetensors` stops at the first defect with one exception for all; here each is
recorded and the rest is still read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import Defect, impostor, parse_object
from ckptcheck.checkpoint.source import Source
from ckptcheck.phrase import count, shape

MAX_HEADER = 100_000_000
"""Longest header that safetensors accepts, in bytes (`MAX_HEADER_SIZE` in its tensor.rs)."""
MAX_SIZE = 2**64
FIRST_READ = 1 << 18
"""What is read before the header's length is known; most headers fit, so most shards take one read."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element of every dtype that safetensors 0.8 knows."""


class Tensor(msgspec.Struct, gc=False, frozen=True):
    """A tensor as the header describes it. data_offsets: [begin, end) in bytes from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor occupies in the file."""
        return self.data_offsets[1] - self.data_offsets[0]


class _Metadata(msgspec.Struct):
    metadata: dict[str, str] | None = msgspec.field(name="__metadata__", default=None)


class _Loose(msgspec.Struct, gc=False):
    """An entry of any kind, `__metadata__` too: its absence of fields tells which."""

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    data_offsets: tuple[int, int] | None = None


@dataclass(frozen=True)
class Shard:
    """One safetensors file: its tensors, its `__metadata__`, and what is wrong with it.

    size: of the file, data_start: where the data begins, both in bytes. metadata: None where the header has none.
    readable: the header could be parsed, so `tensors` is what the file says (defects may remain).
    """

    name: str
    size: int
    tensors: dict[str, Tensor] = field(default_factory=dict, repr=False)
    metadata: dict[str, str] | None = None
    data_start: int = 0
    defects: tuple[Defect, ...] = ()
    readable: bool = False


def read_shard(source: Source, name: str) -> Shard:
    """Read one shard's header. Raises OSError when the file exists but cannot be read."""
    size = source.files[name].size
    try:
        raw = source.read(name, 0, FIRST_READ)
        length = int.from_bytes(raw[:8], "little")
        if FIRST_READ < 8 + length <= size and length <= MAX_HEADER:
            raw += source.read(name, FIRST_READ, 8 + length - FIRST_READ)
    except FileNotFoundError:
        return Shard(name, size, defects=(Defect("vanished", "the file disappeared while it was being read"),))
    if len(raw) < min(size, 8 + length, MAX_HEADER) and len(raw) < min(size, FIRST_READ):
        return Shard(name, size, defects=(Defect("vanished", f"the file shrank to {len(raw):,} bytes while it was being read"),))
    return parse_header(name, size, raw)


def parse_header(name: str, size: int, raw: bytes) -> Shard:
    """Parse the beginning of a safetensors file of `size` bytes; `raw` holds the header whole where the file does."""

    def unreadable(kind: str, text: str) -> Shard:
        return Shard(name, size, defects=(Defect(kind, text),))

    if size == 0:
        return unreadable("empty-file", "the file is empty")
    if (found := impostor(raw[:64])) is not None:
        return Shard(name, size, defects=(found,))
    if not any(raw[: min(len(raw), 4096)]):
        return unreadable("zeroed-header", "the file begins with zero bytes where its header should be")
    if size < 8:
        return unreadable("truncated", f"the file ends after {count(size, 'byte')}, before its header begins")
    length = int.from_bytes(raw[:8], "little")
    if length > MAX_HEADER:
        return unreadable("oversized-header", f"the header claims {length:,} bytes; safetensors accepts at most {MAX_HEADER:,}")
    if 8 + length > size:
        return unreadable("truncated", f"the header claims {length:,} bytes, but the file has only {size:,} in all")
    header = raw[8 : 8 + length]
    if len(header) < length:
        return unreadable("vanished", "the file shrank while it was being read")
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as error:
        return unreadable("header-not-utf8", f"the header is not UTF-8 text (byte {8 + error.start})")
    if not header.startswith(b"{"):
        start = text[:12]
        return unreadable("header-not-json", f"the header is not a JSON object; it begins with {start!r}" if start else "the header is empty")
    return _described(name, size, header, 8 + length)


def _described(name: str, size: int, header: bytes, data_start: int) -> Shard:
    tensors, metadata, defects = _fast(header) or _slow(header)
    if tensors is None:
        return Shard(name, size, data_start=data_start, defects=tuple(defects))
    if not tensors:
        defects.append(Defect("no-tensors", "the header lists no tensor"))
    defects += _layout_defects(tensors, size - data_start)
    if data_start % 8:
        defects.append(Defect("misaligned-data", f"the data begins at byte {data_start:,}, which is no multiple of 8"))
    return Shard(name, size, tensors, metadata, data_start, tuple(defects), readable=True)


_Parsed = tuple[dict[str, Tensor] | None, dict[str, str] | None, list[Defect]]
_DECODER = msgspec.json.Decoder(dict[str, Tensor])
_METADATA = msgspec.json.Decoder(_Metadata)
_LOOSE = msgspec.json.Decoder(dict[str, _Loose])


def _fast(header: bytes) -> _Parsed | None:
    """Parse a header in which nothing is unusual; None sends it to `_slow`, which can say what is.

    Every entry shows each of its three keys once, so a count of the keys in the bytes that differs from the number of
    entries betrays a key that stands twice, which JSON parsers swallow. A backslash could spell a key differently.
    """
    metadata = None
    body = header
    if header.startswith(b'{"__metadata__":{'):
        end = header.find(b"}", 17)
        try:
            metadata = msgspec.json.decode(header[16 : end + 1], type=dict[str, str])
        except msgspec.MsgspecError:
            return None
        if header[16 : end + 1].count(b'":') != len(metadata):
            return None
        body = b"{" + header[end + 2 :] if header[end + 1 : end + 2] == b"," else b"{" + header[end + 1 :]
    if b"\\" in header or b'"__metadata__"' in body:
        return None
    try:
        tensors = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if any(body.count(key) != len(tensors) for key in (b'"dtype"', b'"shape"', b'"data_offsets"')):
        return None
    if any(min(tensor.data_offsets) < 0 for tensor in tensors.values()):
        return None
    return tensors, metadata, []


def _slow(header: bytes) -> _Parsed:
    """Parse any header, entry by entry, and say what is wrong with each."""
    found, defects = parse_object(header)
    if found is None:
        return None, None, [Defect("header-not-json", f"the header cannot be read: {defect.text}") for defect in defects]
    metadata = found.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        defects.append(Defect("malformed-metadata", "__metadata__ is not an object of strings", "__metadata__"))
        metadata = None
    tensors = {}
    for name, entry in found.items():
        try:
            tensors[name] = _entry(entry)
        except ValueError as error:
            defects.append(Defect("malformed-entry", str(error), name))
    return tensors, metadata, defects


def _entry(entry: Any) -> Tensor:
    """Check one entry of a header. Raises ValueError with what is wrong."""
    if not isinstance(entry, dict):
        raise ValueError("the header describes it with something that is no object")
    missing = [key for key in ("dtype", "shape", "data_offsets") if key not in entry]
    if missing:
        raise ValueError(f"the header does not give its {' and '.join(missing)}")
    dtype, dimensions, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise ValueError("its dtype is not a string")
    if not _naturals(dimensions):
        raise ValueError("its shape is not a list of whole numbers from 0 to 2^64")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ValueError("its data_offsets are not two whole numbers from 0 to 2^64")
    return Tensor(dtype, tuple(dimensions), (offsets[0], offsets[1]))


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_SIZE for item in value)


def _layout_defects(tensors: dict[str, Tensor], available: int) -> list[Defect]:
    """Check that the tensors tile the data section of `available` bytes, each with the size its dtype and shape say.

    Follows `Metadata::validate` of safetensors 0.8, which wants the tensors, sorted by offsets, to touch each other.
    """
    defects: list[Defect] = []
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}
    reached, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=_offsets):
        begin, end = tensor.data_offsets
        if begin != reached or end < begin:
            if end < begin:
                defects.append(Defect("overlap", f"its data would end at byte {end:,}, before it begins at {begin:,}", name))
            elif begin > reached:
                where = f"between {before} and it" if before else "before it"
                defects.append(Defect("hole", f"{count(begin - reached, 'byte')} {where} belong to no tensor", name))
            elif before:
                defects.append(Defect("overlap", f"it begins at byte {begin:,}, inside or before the end of {before}", name))
        key = tensor.dtype, tensor.shape
        nbytes = sizes.get(key)
        if nbytes is None:
            nbytes = sizes[key] = _nbytes(*key)
        if nbytes < 0:
            defects.append(_size_defect(name, tensor))
        elif nbytes != end - begin:
            text = f"its data takes {max(end - begin, 0):,} bytes, but {tensor.dtype} {shape(tensor.shape)} needs {nbytes:,}"
            defects.append(Defect("size-mismatch", text, name))
        reached, before = max(reached, end), name
    if reached > available:
        text = f"the file ends {count(reached - available, 'byte')} before its data does"
        defects.append(Defect("truncated", f"{text} (the last tensor is {before})"))
    elif reached < available:
        defects.append(Defect("trailing-bytes", f"{count(available - reached, 'byte')} follow the last tensor and belong to none"))
    return defects


def _offsets(item: tuple[str, Tensor]) -> tuple[int, int]:
    return item[1].data_offsets


def _nbytes(dtype: str, dimensions: tuple[int, ...]) -> int:
    """Bytes of a tensor; -1 unknown dtype, -2 more than 2^64 (as safetensors multiplies), -3 no whole byte."""
    if dtype not in BITS:
        return -1
    total = 1
    for dimension in dimensions:
        total *= dimension
        if total >= MAX_SIZE:
            return -2
    total *= BITS[dtype]
    if total >= MAX_SIZE:
        return -2
    return -3 if total % 8 else total // 8


def _size_defect(name: str, tensor: Tensor) -> Defect:
    nbytes = _nbytes(tensor.dtype, tensor.shape)
    if nbytes == -1:
        return Defect("unknown-dtype", f"its dtype {tensor.dtype!r} is none that safetensors knows", name)
    if nbytes == -2:
        return Defect("shape-overflow", f"its shape {shape(tensor.shape)} has more elements than 64 bits can count", name)
    return Defect("size-mismatch", f"{tensor.dtype} {shape(tensor.shape)} does not fill a whole number of bytes", name)
