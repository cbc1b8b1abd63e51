"""A process that looks at pieces of files: given one batch after another on stdin, it answers on stdout.

It reads them into its cache, and maps them for what it has to look at twice. Whoever maps a file that shrinks, or whose disk
fails, is killed by SIGBUS: it is this process that dies then, and the one that asked lives to say what happened.
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

from ckptcheck.values.look import CHUNK, Seen, look
from ckptcheck.values.peaks import row_marks, row_peaks

LENGTH = struct.Struct("<I")
SHRUNK = 3
"""The exit code of a worker whose file has lost its end: dying says the same as the SIGBUS of one that looks at the map."""


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
    open_file: OpenFile | None = None
    decoder = msgspec.msgpack.Decoder(Batch)
    while (message := receive(source)) is not None:
        batch = decoder.decode(message)
        if open_file is None or batch.path != open_file.path:
            open_file = OpenFile(batch.path, batch.size)
        send(sink, msgspec.msgpack.encode([open_file.look_at(piece) for piece in batch.pieces]))


class OpenFile:
    """A file that is looked at: read into the cache chunk by chunk, and mapped for whoever has to look twice.

    What is read again and again into the same half megabyte stays in the cache for both maxima, and no page is mapped for it.
    """

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - open for as long as it is asked about
        if os.fstat(self._file.fileno()).st_size < size:
            os._exit(SHRUNK)
        self._mapped = mmap.mmap(self._file.fileno(), 0, prot=mmap.PROT_READ)
        self._chunk = np.empty(CHUNK, np.uint8)

    def look_at(self, piece: Piece) -> Seen:
        """Look at a piece of it."""

        def look_twice(raw: NDArray[np.uint8], dtype: str) -> Seen:
            return look(raw, dtype, lambda begin, end: self._read(piece.begin + begin, end - begin))

        return look_at(np.frombuffer(self._mapped, np.uint8, piece.nbytes, piece.begin), piece, look_twice)

    def _read(self, begin: int, nbytes: int) -> NDArray[np.uint8]:
        done = 0
        while done < nbytes:
            more = os.preadv(self._file.fileno(), [self._chunk.data[done:nbytes]], begin + done)
            if not more:
                os._exit(SHRUNK)
            done += more
        return self._chunk[:nbytes]
