"""A worker process: it reads batches from stdin, scans or sums their pieces, and writes the results to stdout.

It maps the files, which is twice as fast as reading them. If a mapped file shrinks or its disk fails, the system kills the
process that maps it by SIGBUS. So only the worker dies, and its parent lives on and reports the fault.
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

from ckptcheck.text.file_io import open_regular_file
from ckptcheck.values.channel_sample import RUNS, choose_runs, sum_squares
from ckptcheck.values.chunk_scan import scan_chunk
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.file_marks import MARK_BYTES, count_marks, take_marks
from ckptcheck.values.row_scan import FINGERPRINT_BYTES, max_row_patterns, row_fingerprints
from ckptcheck.values.sketch import take_sample
from ckptcheck.values.stats import ChunkStats
from ckptcheck.values.tensor_part import Sums, TensorPart, sum_part

LENGTH = struct.Struct("<I")
"""The head of every message: the number of bytes that follow."""


class Piece(msgspec.Struct, array_like=True):
    """A run of consecutive elements of one tensor."""

    begin: int
    """First byte, from the start of the file."""
    nbytes: int
    dtype: str
    tensor: int
    """Number of the tensor in the plan."""
    offset: int
    """First element, from the start of the tensor."""
    row: int = 0
    """Bytes of a row if every row gets statistics of its own; the piece is then a whole number of rows. Else 0."""
    sampled: tuple[int, int] | None = None
    """Rows and columns of the matrix if its channels are sampled; the piece is then a whole number of rows."""
    elements: int = 0
    """How many elements of the piece are sampled, for a sketch; 0 for none."""


class Batch(msgspec.Struct, array_like=True):
    """Pieces of one file that a worker scans together, or parts of tensors that it sums for their shard digests."""

    shard: str
    path: str
    size: int
    """Bytes of the file when it was listed."""
    pieces: list[Piece]
    parts: list[TensorPart] = []
    """Their offsets are in bytes from the start of the file."""

    @property
    def nbytes(self) -> int:
        """Bytes to scan or to sum."""
        return sum(piece.nbytes for piece in self.pieces) + sum(part.nbytes for part in self.parts)


class BatchStats(msgspec.Struct, array_like=True):
    """The results of a batch: one entry for each piece, and one for each part."""

    chunks: list[ChunkStats]
    sums: list[Sums]


ChunkScanner = Callable[[NDArray[np.uint8], str], ChunkStats]


def scan_piece(raw: NDArray[np.uint8], piece: Piece, scan: ChunkScanner) -> ChunkStats:
    """Scan the bytes of a piece, and as the piece asks its rows and samples of its channels and elements."""
    stats = scan(raw, piece.dtype)
    stats.marks = take_marks(raw, piece.begin)
    if piece.row:
        stats.row_max = max_row_patterns(raw, piece.dtype, piece.row)
        stats.row_fingerprints = row_fingerprints(raw, piece.row)
    if piece.sampled:
        sums = sum_squares(raw, piece.dtype, piece.offset // piece.sampled[1], piece.sampled)
        stats.row_squares, stats.column_squares = (part.tobytes() for part in sums)
    if piece.elements:
        stats.elements = take_sample(raw, piece.dtype, piece.elements)
    return stats


def fits_piece(stats: ChunkStats, piece: Piece) -> bool:
    """Whether these can be the statistics of a piece, because another machine computed them: none exceeds its size."""
    bits = FORMATS[piece.dtype].bits
    number, width = piece.nbytes * 8 // bits, bits // 8
    rows = piece.nbytes // piece.row if piece.row else 0
    positions = (stats.first_nan, stats.first_inf)
    patterns = (stats.max_pattern, stats.constant or 0)
    runs = choose_runs(piece.sampled[1]) if piece.sampled else []
    columns = 4 * RUNS * sum(end - begin for begin, end in runs)
    return (
        min(stats.nan, stats.inf) >= 0
        and stats.nan + stats.inf <= number
        and all(-1 <= position < max(number, 1) for position in positions)
        and all(0 <= pattern < 1 << bits for pattern in patterns)
        and all(0 <= begin <= end <= piece.nbytes for begin, end in stats.zero_runs)
        and (len(stats.row_max), len(stats.row_fingerprints)) == (rows * width, rows * FINGERPRINT_BYTES)
        and len(stats.row_squares) % (4 * RUNS) == 0
        and len(stats.column_squares) == (columns if stats.row_squares else 0)
        and len(stats.elements) <= (piece.nbytes if piece.elements else 0)
        and len(stats.elements) % width == 0
        and len(stats.marks) == MARK_BYTES * count_marks(piece.begin, piece.nbytes)
    )


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Write a message, preceded by its length."""
    rest = memoryview(LENGTH.pack(len(message)) + message)
    while rest:
        rest = rest[stream.write(rest) :]
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes | None:
    """Read a message; None if the other side closed the stream, or died in the middle of a message."""
    head = _read_exactly(stream, LENGTH.size)
    return None if head is None else _read_exactly(stream, LENGTH.unpack(head)[0])


def _read_exactly(stream: IO[bytes], number: int) -> bytes | None:
    data = b""
    while len(data) < number:
        more = stream.read(number - len(data))
        if not more:
            return None
        data += more
    return data


def main() -> None:
    """Serve batches until stdin is closed."""
    serve_batches(sys.stdin.buffer, sys.stdout.buffer)


def serve_batches(source: IO[bytes], sink: IO[bytes]) -> None:
    """Scan the batches from `source` and write the results to `sink`, until the parent closes `source`."""
    path, mapped = None, None
    decoder = msgspec.msgpack.Decoder(Batch)
    while (message := read_message(source)) is not None:
        batch = decoder.decode(message)
        if batch.path != path:
            file = open_regular_file(batch.path)
            if os.fstat(file).st_size < batch.size:
                # The file shrank before it was mapped. Exiting tells the parent the same as a SIGBUS.
                os._exit(3)
            path, mapped = batch.path, mmap.mmap(file, 0, prot=mmap.PROT_READ)
            os.close(file)
        assert mapped is not None
        chunks = [
            scan_piece(np.frombuffer(mapped, np.uint8, piece.nbytes, piece.begin), piece, scan_chunk)
            for piece in batch.pieces
        ]
        sums = [sum_part(part, mapped) for part in batch.parts]
        write_message(sink, msgspec.msgpack.encode(BatchStats(chunks, sums)))
