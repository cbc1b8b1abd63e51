"""A process that looks at pieces of files: given one batch after another on stdin, it answers on stdout.

It maps the files, which is twice as fast as reading them. Whoever maps a file that shrinks, or whose disk fails, is killed
by SIGBUS: it is this process that dies then, and the one that asked lives to say what happened.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Callable
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.look import Seen, look
from ckptcheck.values.peaks import row_marks, row_peaks

LENGTH = struct.Struct("<I")


class Piece(msgspec.Struct, array_like=True):
    """A run of elements: begin and nbytes in the file, tensor: its number, offset: elements into the tensor.

    row: bytes of a row where each row is to be glanced at; then the run is a whole number of rows.
    """

    begin: int
    nbytes: int
    dtype: str
    tensor: int
    offset: int
    row: int = 0


class Batch(msgspec.Struct, array_like=True):
    """Pieces of one file that are looked at together. size: of the file when it was listed, in bytes."""

    shard: str
    path: str
    size: int
    pieces: list[Piece]

    @property
    def nbytes(self) -> int:
        """Bytes to look at."""
        return sum(piece.nbytes for piece in self.pieces)


Look = Callable[[NDArray[np.uint8], str], Seen]


def look_at(raw: NDArray[np.uint8], piece: Piece, look: Look) -> Seen:
    """Look at the bytes of a piece, and at its rows where that is wanted."""
    seen = look(raw, piece.dtype)
    if piece.row:
        seen.row_peaks = row_peaks(raw, piece.dtype, piece.row)
        seen.row_marks = row_marks(raw, piece.row)
    return seen


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message with its length before it."""
    left = memoryview(LENGTH.pack(len(message)) + message)
    while left:
        left = left[stream.write(left) :]
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read a message; None where the other side has closed, or died in the middle of one."""
    head = _exactly(stream, LENGTH.size)
    return None if head is None else _exactly(stream, LENGTH.unpack(head)[0])


def _exactly(stream: IO[bytes], number: int) -> bytes | None:
    found = b""
    while len(found) < number:
        more = stream.read(number - len(found))
        if not more:
            return None
        found += more
    return found


def main() -> None:
    """Answer batches until stdin is closed."""
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer the batches that come from `source` on `sink`, until it is closed."""
    path, mapped = None, None
    decoder = msgspec.msgpack.Decoder(Batch)
    while (message := receive(source)) is not None:
        batch = decoder.decode(message)
        if batch.path != path:
            with open(batch.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < batch.size:
                    os._exit(3)  # it shrank before it was mapped: dying says the same as SIGBUS
                path, mapped = batch.path, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped is not None
        seen = [
            look_at(np.frombuffer(mapped, np.uint8, piece.nbytes, piece.begin), piece, look) for piece in batch.pieces
        ]
        send(sink, msgspec.msgpack.encode(seen))
