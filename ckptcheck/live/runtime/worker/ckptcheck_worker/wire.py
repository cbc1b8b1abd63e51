"""Frames messages: eight bytes of length, big-endian, then that many bytes of JSON (NaN and Infinity allowed)."""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH = struct.Struct(">Q")
MAX_BYTES = 1 << 30
"""The largest message. A larger one is corrupt, or carries tensors, which belong in files."""


def encode(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message. Raises TypeError or ValueError for values that JSON lacks, and above 1 GiB."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too long: pass tensors in files")
    return LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Assembles messages from received bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Add received bytes and return the messages that they complete. Raises ValueError for bytes that are no message."""
        self._bytes += data
        messages = []
        while len(self._bytes) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._bytes)
            if length > MAX_BYTES:
                raise ValueError(f"a message claims {length} bytes")
            end = LENGTH.size + length
            if len(self._bytes) < end:
                break
            message = json.loads(self._bytes[LENGTH.size : end])
            if not isinstance(message, dict):
                raise ValueError("a message is not a JSON object")
            messages.append(message)
            del self._bytes[:end]
        return messages
