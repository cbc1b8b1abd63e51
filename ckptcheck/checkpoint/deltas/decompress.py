"""Decompresses zstd, block by block and never more than was asked for, so that a small file cannot fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from ckptcheck.checkpoint.deltas.delta import Span
from ckptcheck.checkpoint.source import Source

BLOCK = 1 << 21
"""Bytes that are decompressed at a time: they stay in the cache. A multiple of every dtype's size."""
MAX_WINDOW = 1 << 27
"""The longest window that a frame may ask for, in bytes: what libzstd grants where nobody says otherwise."""
READ = 1 << 20
"""Compressed bytes that are read at a time."""


class BrokenFrame(Exception):
    """The bytes are no zstd frame, or end within one. The message says which."""


class MissingPackage(Exception):
    """No package here can decompress. The message says what to install."""


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
    """Whether a package here can decompress zstd."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        return False
    return True


def decompress(source: Source, span: Span, most: int) -> Iterator[bytearray]:
    """Yield what a frame holds in blocks of BLOCK bytes, the last one shorter, up to `most` bytes and one byte beyond.

    Who gets more than `most` bytes knows that the frame holds too much. Raises BrokenFrame, MissingPackage, OSError.
    """
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackage("to decompress it needs the package zstandard: pip install 'ckptcheck[delta]'") from error
    left = most + 1
    try:
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


def _fill(reader: _Reader, block: bytearray) -> int:
    view, filled = memoryview(block), 0
    while filled < len(view):
        more = reader.readinto(view[filled:])
        if not more:
            break
        filled += more
    return filled
