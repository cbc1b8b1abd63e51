"""One message: eight bytes of length, most significant first, and that many bytes of JSON (NaN and Infinity allowed)."""

from __future__ import annotations

import json
import struct
from typing import Any

LENGTH = struct.Struct(">Q")
MOST = 1 << 30
"""Bytes. What is larger is no message but tensors on the wrong road, or noise."""


def encode(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message. Raises TypeError or ValueError for what JSON cannot say, or one above 1 GiB."""
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(body) > MOST:
        raise ValueError(f"a message of {len(body)} bytes is too long: tensors go over a data plane")
    return LENGTH.pack(len(body)) + body


class Inbox:
    """Puts messages together from the pieces that arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """Take the next bytes and return the messages they complete. Raises ValueError for what is no message."""
        self._bytes += piece
        messages = []
        while len(self._bytes) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._bytes)
            if length > MOST:
                raise ValueError(f"a message claims {length} bytes")
            end = LENGTH.size + length
            if len(self._bytes) < end:
                break
            message = json.loads(self._bytes[LENGTH.size : end])
            if not isinstance(message, dict):
                raise ValueError("a message is no object")
            messages.append(message)
            del self._bytes[:end]
        return messages
