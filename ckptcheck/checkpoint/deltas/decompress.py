"""Decompresses zstd block by block, up to a given size, so that a small file cannot fill the memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from ckptcheck.checkpoint.deltas.delta import Span
from ckptcheck.checkpoint.source import Source

BLOCK = 1 << 21
"""Bytes that are decompressed at a time: few enough to stay in the CPU cache, and a multiple of every dtype's size."""
MAX_WINDOW = 1 << 27
"""Longest window that a frame may ask for, in bytes: libzstd's default limit."""
COMMON_WINDOW = 1 << 23
"""Longest window of zstd's levels up to 19, in bytes. Each core has a reader, so only one at a time may fill a longer window."""
MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of a frame."""
SINGLE_SEGMENT = 1 << 5
"""The bit of a frame's descriptor for a single segment: the window is the whole content, and no window size follows."""
LONGEST_HEADER = 18
"""Most bytes of a frame's header: the magic number and 14 more (RFC 8878, 3.1.1.1)."""
READ = 1 << 20
"""Compressed bytes that are read at a time."""


class BrokenFrame(Exception):
    """The bytes are no zstd frame, or end within one. The message says which."""


class MissingPackage(Exception):
    """No installed package can decompress zstd. The message says what to install."""


class _Reader(Protocol):
    def readinto(self, buffer: Any, /) -> int: ...


class _SpanFile:
    """A span of a file that a decompressor reads."""

    def __init__(self, source: Source, span: Span) -> None:
        self._source, self._span, self._at = source, span, 0

    def read(self, size: int = -1) -> bytes:
        left = self._span.nbytes - self._at
        take = min(READ if size < 0 else size, left)
        if take <= 0:
            return b""
        raw = self._source.read(self._span.file, self._span.begin + self._at, take)
        self._at += len(raw)
        return raw


def is_available() -> bool:
    """Whether an installed package can decompress zstd."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        return False
    return True


def decompress(source: Source, span: Span, most: int) -> Iterator[bytearray]:
    """Yield the content of a frame in blocks of BLOCK bytes, the last one shorter, up to `most` bytes and one more.

    The one byte more tells the caller that the frame holds too much. Raises BrokenFrame, MissingPackage, OSError.
    """
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackage("to decompress it needs the package zstandard: pip install 'ckptcheck[delta]'") from error
    left = most + 1
    try:
        _require_window(_read_window(source, span))
        reader: _Reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(_SpanFile(source, span))
        while left > 0:
            block = bytearray(min(BLOCK, left))
            filled = _fill(reader, block)
            left -= filled
            if filled:
                yield block if filled == len(block) else block[:filled]
            if filled < len(block):
                break
    except zstandard.ZstdError as error:
        raise BrokenFrame(f"it is no whole zstd frame: {error}") from error


@contextmanager
def share_windows(source: Source, span: Span) -> Iterator[None]:
    """If a frame asks for a window beyond COMMON_WINDOW, run the block while no other thread holds such a window."""
    with _LONG_WINDOW if _read_window(source, span) > COMMON_WINDOW else nullcontext():
        yield


_LONG_WINDOW = threading.Lock()


def _read_window(source: Source, span: Span) -> int:
    """Return the window size that a frame asks for (RFC 8878, 3.1.1.1); 0 if it is no frame. Raises OSError."""
    header = source.read(span.file, span.begin, min(span.nbytes, LONGEST_HEADER))
    if not header.startswith(MAGIC) or len(header) <= len(MAGIC) + 1:
        return 0
    descriptor, rest = header[len(MAGIC)], header[len(MAGIC) + 1 :]
    if not descriptor & SINGLE_SEGMENT:
        base = 1 << (10 + (rest[0] >> 3))
        return base + base // 8 * (rest[0] & 7)
    width, dictionary = 1 << (descriptor >> 6), (0, 1, 2, 4)[descriptor & 3]
    content = int.from_bytes(rest[dictionary : dictionary + width], "little")
    return content + 256 if width == 2 else content


def _require_window(window: int) -> None:
    if window > MAX_WINDOW:
        raise BrokenFrame(f"its zstd frame asks for a window of {window:,} bytes, and gets {MAX_WINDOW:,} at most")


def _fill(reader: _Reader, block: bytearray) -> int:
    view, filled = memoryview(block), 0
    while filled < len(view):
        more = reader.readinto(view[filled:])
        if not more:
            break
        filled += more
    return filled
