"""Locates the records of a torch.save archive: a zip of stored (never compressed) records and a `data.pkl`.

Records: ``NAME/data.pkl`` (a pickle that describes the object), ``NAME/data/0``, ``/1`` … (the bytes of its storages),
``NAME/byteorder``, ``NAME/version``. Format: torch/serialization.py, caffe2/serialize/inline_container.cc.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.unpickle import Known, UnreadablePickle, unpickle

Read = Callable[[int, int], bytes]
"""Reads (start, length) of the archive; returns fewer bytes at its end."""
MAX_RECORDS = 1 << 20
"""Most records of an archive: each becomes an object of half a kilobyte, and a checkpoint has one for each tensor."""
MAX_DIRECTORY = 1 << 28
"""Most bytes of an archive's directory: room for MAX_RECORDS with names of 200 bytes."""
LOCAL_HEADER = 30
WINDOW = 4096
"""Bytes at the beginning and at the end of an archive that are read once: its headers, pickle and directory lie there."""


class UnreadableArchive(Exception):
    """The file is no torch.save archive, or its tensors cannot be located. The message is the end of a sentence."""


class ArchiveRecord(msgspec.Struct, frozen=True):
    """A record of the archive."""

    begin: int
    """Offset of its first byte from the start of the archive."""
    length: int
    """Length in bytes."""
    crc: int
    """CRC-32 according to the archive's directory."""
    is_corrupt: bool | None = None
    """Whether its bytes have another CRC-32; None if they were not read with the directory."""


class Archive(msgspec.Struct, frozen=True, dict=True):
    """The directory and the pickle of a torch.save archive."""

    records: dict[str, ArchiveRecord]
    """Name without the archive's prefix → record."""
    pickle: bytes
    """The bytes of data.pkl."""
    big_endian: bool = False
    """Whether the record `byteorder` says big-endian."""
    has_checksums: bool = True
    """Whether the writer stored checksums (torch.serialization.set_crc32_options can switch that off)."""

    def describe(self, known: Known, load_persistent: Callable[[Any], Any]) -> tuple[Any, tuple[str, ...]]:
        """Return the object that data.pkl describes and the globals it names beyond `known`. Raises UnreadableArchive."""
        try:
            unpickled = unpickle(self.pickle, known, load_persistent)
        except UnreadablePickle as error:
            raise UnreadableArchive(f"its data.pkl cannot be read: {error}") from error
        return unpickled.value, unpickled.unexpected_globals


class _Windows:
    """Caches the beginning and the end of an archive: a run has 100,000 archives, and each takes a dozen short reads."""

    def __init__(self, read: Read, length: int) -> None:
        self._read = read
        self._head = read(0, length if length <= 2 * WINDOW else min(length, WINDOW))
        self._tail_begin = length - WINDOW

    @cached_property
    def _tail(self) -> bytes:
        return self._read(self._tail_begin, WINDOW)

    def __call__(self, start: int, length: int) -> bytes:
        found = self.find(start, length)
        return self._read(start, length) if found is None else found

    def find(self, start: int, length: int) -> bytes | None:
        """Return `length` bytes from the cache; None if they are not in it."""
        if start >= 0 and start + length <= len(self._head):
            return self._head[start : start + length]
        if 0 < self._tail_begin <= start and start + length <= self._tail_begin + len(self._tail):
            start -= self._tail_begin
            return self._tail[start : start + length]
        return None


class _View(io.RawIOBase):
    """A read-only file object for zipfile over a read function."""

    def __init__(self, read: Read, length: int) -> None:
        self._read, self._length, self._at = read, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if size > MAX_DIRECTORY:
            raise UnreadableArchive("its directory is absurdly long")
        raw = self._read(self._at, size)
        if raw.count(b"PK\x01\x02") > MAX_RECORDS:  # each becomes an object of half a kilobyte
            raise UnreadableArchive("its directory is absurdly long")
        self._at += len(raw)
        return raw


def open_archive(read: Read, length: int) -> Archive:
    """Read the directory of an archive of `length` bytes and its data.pkl. Raises UnreadableArchive, and OSError from reading."""
    read = _Windows(read, length)
    if read(0, 4) != b"PK\x03\x04":
        raise UnreadableArchive("it does not begin as an archive of torch.save does")
    try:
        with zipfile.ZipFile(_View(read, length)) as archive:
            if find_stated_directory(archive, read, length) is not None:
                raise UnreadableArchive("its directory does not lie where its end says, and PyTorch reads another one")
            return _described(archive, read, length)
    except (UnreadableArchive, OSError):
        raise
    except Exception as error:  # a hostile zip may raise anything at all
        raise UnreadableArchive(f"it is not a readable zip archive ({type(error).__name__})") from error


def read_pickles(read: Read, length: int, most: int) -> tuple[list[bytes], bool]:
    """Return the beginning of each data.pkl of a zip that `open_archive` refuses, and whether these are complete.

    PyTorch's reader (miniz) takes compressed records too. The function reads at most `most` bytes, and decompresses them to at
    most as many, because a directory may name one record a thousand times. Raises OSError from reading.
    """
    found: list[bytes] = []
    try:
        with zipfile.ZipFile(_View(read, length)) as archive:
            is_whole = _read_members(archive, read, most, found)
            if (stated := find_stated_directory(archive, read, length)) is not None:
                # PyTorch reads the directory that the end of the file states: parse the bytes up to that directory's end.
                begin, size = stated
                end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0, 0, size, begin, 0)
                cut = read(0, begin + size) + end if begin + size <= most else b""
                is_whole = False
                with zipfile.ZipFile(io.BytesIO(cut)) as other:
                    _read_members(other, read, most, found)
    except OSError:
        raise
    except Exception:  # a hostile zip may raise anything at all; keep what was read before
        return found, False
    return found, is_whole and bool(found)


def _read_members(archive: zipfile.ZipFile, read: Read, most: int, found: list[bytes]) -> bool:
    """Append the pickles that a directory names, up to `most` bytes in all; return whether they are complete."""
    left = most
    for member in archive.infolist():
        # skip lzma: its stream chooses how much memory it takes, and miniz does not support it
        is_readable = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if member.filename.rpartition("/")[2] != "data.pkl" or not is_readable:
            continue
        raw = read(_find_begin(member, read), min(member.compress_size, left))
        is_stored = member.compress_type == zipfile.ZIP_STORED
        found.append(raw if is_stored else zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, left))
        left -= max(1, len(raw), len(found[-1]))
        if left <= 0:
            return False
    return True


def find_stated_directory(archive: zipfile.ZipFile, read: Read, length: int) -> tuple[int, int] | None:
    """Return offset and size of the directory that the end of a zip states, if Python's reader took another one; else None.

    A zip may follow other bytes: Python finds the directory backwards from the end, and shifts all offsets. PyTorch (miniz,
    `mz_zip_reader_read_central_dir`) takes the stated offset. So a file with two directories can hold two objects.
    """
    end = zipfile._EndRecData(_View(read, length))  # type: ignore[attr-defined]  # as ZipFile found it
    size, begin, place = end[5], end[6], end[9]
    locator = read(place - 20, 20) if place >= 20 else b""
    if locator[:4] == b"PK\x06\x07" and (at := int.from_bytes(locator[8:16], "little")) != place - 20 - 56:
        wide = read(at, 56)  # miniz follows the locator's offset, Python takes the bytes before the locator
        return int.from_bytes(wide[48:56], "little"), int.from_bytes(wide[40:48], "little")
    return (begin, size) if begin != archive.start_dir else None


def _find_begin(member: zipfile.ZipInfo, read: Read) -> int:
    """Return the offset of a record's bytes. Raises UnreadableArchive."""
    head = read(member.header_offset, LOCAL_HEADER)
    if len(head) < LOCAL_HEADER or head[:4] != b"PK\x03\x04":
        raise UnreadableArchive("its directory points to no record")
    names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    return member.header_offset + LOCAL_HEADER + names


def _described(archive: zipfile.ZipFile, read: _Windows, length: int) -> Archive:
    members = archive.infolist()
    if len(members) > MAX_RECORDS:
        raise UnreadableArchive(f"it has {len(members):,} records")
    pickles = [member for member in members if member.filename.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise UnreadableArchive("it holds no data.pkl" if not pickles else "it holds several data.pkl")
    prefix = pickles[0].filename[: -len("data.pkl")]
    records: dict[str, ArchiveRecord] = {}
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise UnreadableArchive("its records are compressed, which torch.save never does")
        if member.flag_bits & 1:
            raise UnreadableArchive("its records are encrypted")
        begin = _find_begin(member, read)
        if begin + member.file_size > length:
            raise UnreadableArchive("a record reaches beyond its end")
        name = member.filename.removeprefix(prefix)
        if name in records:
            raise UnreadableArchive("its directory names a record twice")
        raw = read.find(begin, member.file_size)
        is_corrupt = None if raw is None else zlib.crc32(raw) != member.CRC
        records[name] = ArchiveRecord(begin, member.file_size, member.CRC, is_corrupt)
    described = records["data.pkl"]
    order = records.get("byteorder")
    return Archive(
        records,
        pickle=read(described.begin, described.length),
        big_endian=order is not None and read(order.begin, min(order.length, 8)) == b"big",
        has_checksums=any(record.crc for record in records.values()),
    )
