"""Reads the header of a safetensors file and records every defect in it.

Format: https://github.com/huggingface/safetensors#format. 8 bytes N (unsigned, little-endian), N bytes of UTF-8 JSON
``{"name": {"dtype", "shape", "data_offsets": [begin, end]}, …, "__metadata__": {str: str}}``, then the data, which the
tensors cover without gap or overlap. `safetensors` stops at the first defect with one exception type for all; this reader
records each defect and reads the rest. It does not record a defect that follows from another one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import Defect, detect_foreign_format, json_kind, nesting_depth, parse_object
from ckptcheck.checkpoint.source import File, Source
from ckptcheck.checkpoint.tensor import Natural, Tensor
from ckptcheck.checkpoint.tiling import MAX_SIZE, find_unfit, layout_defects
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.rule import SkipForDamage
from ckptcheck.text.formatting import count

MAX_HEADER = 100_000_000
"""Longest header that safetensors accepts, in bytes (`MAX_HEADER_SIZE` in its tensor.rs)."""
KEYS = ("dtype", "shape", "data_offsets")
MAX_DEPTH = 125
"""How deeply a value in an entry may nest before safetensors' JSON parser gives up (128, less header and entry)."""
MAX_UNUSUAL = 1 << 25
"""Longest header, in bytes, that is parsed entry by entry, in slow Python, if the fast parser rejects it; few files need it."""
FIRST_READ = 1 << 18
"""Bytes that are read before the header's length is known; most headers fit, so most shards take one read."""
ENTRY = len('"":{"dtype":"BF16","shape":[18432,7168],"data_offsets":[,]},') + 1
"""Bytes of a tensor's entry beside its name and offsets. Those of F8_E4M3 have two more, and their scales six fewer."""
METADATA = 1 << 10
"""Bytes of `__metadata__` that writers of shards stay below."""

OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"\x80\x02": "a Python pickle, as old versions of torch.save write",
    b"GGUF": "a GGUF file",
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file",
}
"""First bytes → other formats that occur under the name of a safetensors file."""


class UnfitTensor(EvidenceError, SkipForDamage):
    """The values of a tensor were asked for, and its file does not hold it as the header says. In a rule it is a skip."""


class Shard(msgspec.Struct, frozen=True, dict=True):
    """One safetensors file: its tensors, its `__metadata__` and its defects."""

    name: str
    size: int
    """Size of the file in bytes."""
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] | None = None
    """`__metadata__`; None where the header has none."""
    data_start: int = 0
    """Offset of the first byte of tensor data."""
    defects: tuple[Defect, ...] = ()
    readable: bool = False
    """Whether the header and every entry in it could be parsed, so that `tensors` is complete (defects may remain)."""
    unfit: dict[str, str] = {}
    """Tensor → why its values cannot be read, for the result of `tiling.find_unfit`: nothing reads the bytes of these."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; a file without defects consists of its header and its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) if self.defects else self.size - self.data_start

    @cached_property
    def fitting(self) -> dict[str, Tensor]:
        """The tensors whose values can be read."""
        if not self.unfit:
            return self.tensors
        return {name: tensor for name, tensor in self.tensors.items() if name not in self.unfit}

    def locate(self, name: str) -> int:
        """Return the first byte of a tensor in the file. Raises UnfitTensor for a tensor whose values cannot be read."""
        if name in self.unfit:
            raise UnfitTensor(f"could not look at the values of {name}: {self.unfit[name]}")
        return self.data_start + self.tensors[name].data_offsets[0]


def read_shard(source: Source, name: str, first: int = FIRST_READ) -> Shard:
    """Read one shard's header. Raises OSError when the file exists but cannot be read.

    first: bytes to read before the length of the header is known.
    """
    size = source.files[name].size
    try:
        raw = source.read(name, 0, first)
        length = int.from_bytes(raw[:8], "little")
        due = min(size, first)
        # A length without a header after it is a trap or an accident, so do not read 100 MB. JSON has no NUL, and a sparse
        # file, which costs its maker nothing, has little else.
        if first < 8 + length <= size and length <= MAX_HEADER and raw[8:9] == b"{" and b"\0" not in raw[8:]:
            due = 8 + length
            # On a disk, read from the start again: joining two parts holds both in memory twice. Elsewhere, bytes cost more.
            raw = source.read(name, 0, due) if source.local is not None else raw + source.read(name, first, due - first)
    except FileNotFoundError:
        return Shard(name, size, defects=(Defect("vanished", "the file disappeared while it was being read"),))
    if len(raw) != due:
        text = f"the file changed while it was being read: it had {count(size, 'byte')} when it was listed"
        return Shard(name, size, defects=(Defect("vanished", text),))
    return parse_header(name, size, raw)


def expect_headers(weight_map: Mapping[str, str], files: Mapping[str, File]) -> dict[str, int]:
    """Return shard → bytes to read so that the header that an index leads one to expect is in them, for the larger headers.

    A longer header takes another read, of its rest.
    """
    expected: dict[str, int] = {}
    entries = {shard: ENTRY + 2 * len(str(files[shard].size)) for shard in set(weight_map.values()) & files.keys()}
    for tensor, shard in weight_map.items():
        expected[shard] = expected.get(shard, METADATA) + len(tensor) + entries.get(shard, 0)
    return {shard: min(size, MAX_HEADER) for shard, size in expected.items() if size > FIRST_READ}


def parse_header(name: str, size: int, raw: bytes) -> Shard:
    """Parse the beginning of a safetensors file.

    Args:
        name: the file's name.
        size: the file's size in bytes.
        raw: its first bytes, with the whole header where the file holds the whole header.
    """

    def unreadable(kind: str, text: str) -> Shard:
        return Shard(name, size, defects=(Defect(kind, text),))

    if size == 0:
        return unreadable("empty-file", "the file is empty")
    if (foreign := detect_foreign_format(raw[:64])) is not None:
        return Shard(name, size, defects=(foreign,))
    if size < 8:
        return unreadable("truncated", f"the file ends after {count(size, 'byte')}, before its header begins")
    length = int.from_bytes(raw[:8], "little")
    if length == 0:
        return unreadable("zeroed-header", "the file begins with zero bytes where the length of its header should be")
    if length > MAX_HEADER:
        return unreadable("oversized-header", _oversized(raw, length))
    start = raw[8 : 8 + min(length, 16)]
    if start and not start.startswith(b"{"):
        text = start.decode("utf-8", "replace")
        return unreadable("header-not-json", f"the header is not a JSON object: it begins with {text!r}")
    if 8 + length > size:
        return unreadable("truncated", f"the file ends after {size:,} bytes, inside its header, which has {length:,}")
    header = raw[8 : 8 + length]
    try:
        _ = header.isascii() or header.decode("utf-8")
    except UnicodeDecodeError as error:
        return unreadable("header-not-utf8", f"the header is not UTF-8 text (byte {8 + error.start:,} of the file)")
    return _described(name, size, header, 8 + length)


def _oversized(raw: bytes, length: int) -> str:
    for magic, what in OTHER_FORMATS.items():
        if raw.startswith(magic):
            return f"this is {what}, not a safetensors file"
    if raw[8:9] == b"{":
        return f"the header has {length:,} bytes; safetensors accepts at most {MAX_HEADER:,}"
    return f"this is not a safetensors file: its first 8 bytes would announce a header of {length:,} bytes"


def _described(name: str, size: int, header: bytes, data_start: int) -> Shard:
    tensors, metadata, defects = _fast(header) or _slow(header)
    if tensors is None:
        return Shard(name, size, data_start=data_start, defects=tuple(defects))
    kinds = {defect.kind for defect in defects}
    layout = layout_defects(tensors, data_start, size)
    unfit = find_unfit(tensors, size - data_start) if layout else {}
    if kinds & {"malformed-entry", "duplicate-key"} or (kinds and not tensors):  # `tensors` lacks the entries of these
        layout = [defect for defect in layout if defect.kind not in ("hole", "overlap", "trailing-bytes")]
    elif not tensors and data_start == size:
        layout = [Defect("no-tensors", "the header lists no tensor")]
    defects += layout
    readable = "malformed-entry" not in kinds
    return Shard(name, size, tensors, metadata, data_start, tuple(defects), readable, unfit)


_Parsed = tuple[dict[str, Tensor] | None, dict[str, str] | None, list[Defect]]


class _OddTensor(msgspec.Struct, gc=False):
    """A tensor whose dtype may be one that safetensors does not know."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


_TENSORS = msgspec.json.Decoder(dict[str, Tensor])
_ODD_TENSORS = msgspec.json.Decoder(dict[str, _OddTensor])
_METADATA = msgspec.json.Decoder(dict[str, str])
_LEADING = re.compile(rb'\{[ \t\n\r]*"__metadata__"[ \t\n\r]*:[ \t\n\r]*(\{[^{}]*\})[ \t\n\r]*(?:,[ \t\n\r]*"|\})')
"""A leading `__metadata__` entry, followed by the end of the header or by a comma and the next name."""


def _fast(header: bytes) -> _Parsed | None:
    """Parse an ordinary header; None for any other, which `_slow` parses entry by entry.

    An entry has at least five strings (its name, three keys, its dtype) and so at least ten quotation marks; more reveal a
    duplicate key, which JSON parsers ignore. A minus sign outside a name belongs to a negative number or -0, which msgspec
    reads as 0 and safetensors refuses.
    """
    metadata, body = None, header
    if leading := _LEADING.match(header):
        try:
            metadata = _METADATA.decode(leading[1])
        except msgspec.MsgspecError:
            return None
        if leading[1].count(b'"') != 4 * len(metadata):
            return None
        body = b"{" + memoryview(header)[leading.end() - 1 :]
    try:
        try:
            tensors = _TENSORS.decode(body)
        except msgspec.ValidationError:
            odd = _ODD_TENSORS.decode(body)
            tensors = {name: Tensor(each.dtype, each.shape, each.data_offsets) for name, each in odd.items()}
    except (msgspec.MsgspecError, RecursionError):
        return None
    if body.count(b'"') != 10 * len(tensors) or "__metadata__" in tensors:
        return None
    # The shapes of a model are few, and a tuple for each tensor takes a hundred bytes.
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for tensor in tensors.values():
        if (known := shapes.setdefault(tensor.shape, tensor.shape)) is not tensor.shape:
            msgspec.structs.force_setattr(tensor, "shape", known)
    if b"-" in body and any(before + b"-" in body for before in (b"[", b",", b" ", b"\t", b"\n", b"\r")):
        return None
    return tensors, metadata, []


def _slow(header: bytes) -> _Parsed:
    """Parse any header, entry by entry, and record the defects of each entry.

    Python objects take up to 25 times the header's length, so of a long header only the JSON syntax is checked.
    """
    if len(header) > MAX_UNUSUAL:
        try:
            msgspec.json.decode(header, type=msgspec.Raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            return None, None, [Defect("header-not-json", f"the header cannot be read: {error}")]
        raise OSError(
            errno.EFBIG,
            f"its header of {len(header):,} bytes has an unusual form, and is too long to be examined entry by entry",
        )
    header_object, defects = parse_object(header, strict=True)
    if header_object is None:
        return None, None, [Defect("header-not-json", f"the header cannot be read: {defects[0].text}")]
    absent = "__metadata__" not in header_object
    metadata = header_object.pop("__metadata__", None)
    # safetensors accepts null, which means the same as {}.
    if metadata is None and not absent:
        metadata = {}
    if metadata is not None and (defect := _metadata_defect(metadata)):
        defects.append(defect)
        metadata = None
    tensors = {}
    for name, entry in header_object.items():
        if isinstance(tensor := _entry(entry), Tensor):
            tensors[name] = tensor
        else:
            defects.append(Defect("malformed-entry", tensor, name))
    return tensors, metadata, defects


def _metadata_defect(value: Any) -> Defect | None:
    if not isinstance(value, dict):
        text = f"this is a JSON {json_kind(value)}, not an object of strings"
        return Defect("malformed-metadata", text, "__metadata__")
    for key, item in value.items():
        if not isinstance(item, str):
            text = f"this is a JSON {json_kind(item)}, and the values of __metadata__ have to be strings"
            return Defect("malformed-metadata", text, f"__metadata__.{key}")
    return None


def _entry(entry: Any) -> Tensor | str:
    """Parse one entry of a header; return the tensor, or the defect as a text."""
    if not isinstance(entry, dict):
        return "its entry in the header is no JSON object"
    missing = [key for key in KEYS if key not in entry]
    if missing:
        return f"the header does not give its {' and '.join(missing)}"
    dtype, dimensions, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        return "its dtype is not a string"
    if not _naturals(dimensions):
        return "its shape is not a list of whole numbers from 0 to 2^64"
    if not _naturals(offsets) or len(offsets) != 2:
        return "its data_offsets are not two whole numbers from 0 to 2^64"
    if any(nesting_depth(value, MAX_DEPTH) > MAX_DEPTH for key, value in entry.items() if key not in KEYS):
        return "a value in its entry is nested too deeply to be read"
    return Tensor(dtype, tuple(dimensions), (offsets[0], offsets[1]))


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_SIZE for item in value)
