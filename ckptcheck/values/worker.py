"""A worker process: it reads batches from stdin, scans their pieces, and writes the results to stdout.

It maps the files, which is twice as fast as reading them. If a mapped file shrinks or its disk fails, the system kills the
process that maps it by SIGBUS. So only the worker dies, and its parent lives on and reports the fault.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Sequence
from typing import IO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckptcheck.text.file_io import open_regular_file
from ckptcheck.values.channel_sample import choose_runs, sum_squares
from ckptcheck.values.chunk_scan import scan_chunk
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.first_looks import Shape, choose_grid, count_bytes, cut_spans, judge
from ckptcheck.values.kept_places import Places, count_places, take_places
from ckptcheck.values.pattern_max import CHUNK, scan_small
from ckptcheck.values.row_scan import FINGERPRINT_BYTES, max_row_patterns, row_fingerprints
from ckptcheck.values.sketch import take_sample
from ckptcheck.values.stats import ChunkStats

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
    looked: tuple[int, int] | None = None
    """Rows of the matrix and bytes of a row, if some places of it are looked at (see `first_looks`)."""
    kept: Places | None = None
    """The places of the tensor whose bytes are kept."""


class Batch(msgspec.Struct, array_like=True):
    """Pieces of one file that a worker scans together."""

    shard: str
    path: str
    size: int
    """Bytes of the file when it was listed."""
    pieces: list[Piece]

    @property
    def nbytes(self) -> int:
        """Bytes to scan."""
        return sum(piece.nbytes for piece in self.pieces)


class BatchStats(msgspec.Struct, array_like=True):
    """The results of a batch: one entry for each piece."""

    chunks: list[ChunkStats]


def scan_pieces(raw: NDArray[np.uint8], begin: int, pieces: Sequence[Piece]) -> list[ChunkStats]:
    """Scan the pieces of a file, and as each asks its rows, its places, and samples of its channels and elements.

    raw: the bytes of the file from byte `begin` on.
    """
    results = []
    for piece, known in zip(pieces, _scan_small(raw, begin, pieces), strict=True):
        own = raw[piece.begin - begin : piece.begin - begin + piece.nbytes]
        stats = scan_chunk(own, piece.dtype) if known is None else known
        if piece.row:
            stats.row_max = max_row_patterns(own, piece.dtype, piece.row)
            stats.row_fingerprints = row_fingerprints(own, piece.row)
        if piece.sampled:
            sums = sum_squares(own, piece.dtype, piece.offset // piece.sampled[1], piece.sampled)
            stats.row_squares, stats.column_squares = (part.tobytes() for part in sums)
        if piece.elements:
            stats.elements = take_sample(own, piece.dtype, piece.elements)
        if piece.kept is not None:
            stats.kept = take_places(own, piece.kept, _find_start(piece))
        results.append(stats)
    _look(raw, begin, pieces, results)
    return results


def _scan_small(raw: NDArray[np.uint8], begin: int, pieces: Sequence[Piece]) -> list[ChunkStats | None]:
    """Scan the small pieces in one call for each dtype; None for a piece that needs `scan_chunk`."""
    chunks: list[ChunkStats | None] = [None] * len(pieces)
    by_dtype: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces):
        if 0 < piece.nbytes <= CHUNK:
            by_dtype.setdefault(piece.dtype, []).append(number)
    for dtype, numbers in by_dtype.items():
        form = FORMATS[dtype]
        begins = np.array([pieces[number].begin - begin for number in numbers], np.int64)
        # The tensors of a misaligned file are copied by `scan_chunk`; the pattern of an FNUZ NaN is no largest one.
        if form.fnuz or ((begins + raw.ctypes.data % 8) % (form.bits // 8)).any():
            continue
        sizes = np.array([pieces[number].nbytes for number in numbers], np.int64)
        if (found := scan_small(raw, begins, sizes, form)) is None:
            break
        limit = form.limit if form.limit is not None else 1 << form.bits
        for number, maximum, needs_closer_look in zip(numbers, *found, strict=True):
            if maximum < limit and not needs_closer_look:
                chunks[number] = ChunkStats(maximum)
    return chunks


def _look(raw: NDArray[np.uint8], begin: int, pieces: Sequence[Piece], results: Sequence[ChunkStats]) -> None:
    """Add what the places of the matrices show: all that lie whole in a piece together, by shape."""
    wholes: dict[tuple[Shape, int], list[int]] = {}
    for number, piece in enumerate(pieces):
        if piece.looked is None:
            continue
        if piece.nbytes == piece.looked[0] * piece.looked[1]:
            wholes.setdefault((piece.looked, FORMATS[piece.dtype].bits // 8), []).append(number)
        else:
            start = piece.begin - begin
            results[number].looks = b"".join(
                raw[start + first : start + last].tobytes() for first, last in _list_spans(piece)
            )
    for (shape, width), numbers in wholes.items():
        grid = choose_grid(shape)
        places = np.concatenate([np.arange(first, last) for first, last in grid.spans])
        starts = np.array([pieces[number].begin - begin for number in numbers])
        for number, flags in zip(numbers, judge(grid, raw[starts[:, None] + places], width).tolist(), strict=True):
            results[number].looks = bytes((flags,))


def _list_spans(piece: Piece) -> list[tuple[int, int]]:
    """Return the parts of the looked-at spans of a matrix that lie in a piece of it, from the first byte of the piece."""
    assert piece.looked is not None
    start = _find_start(piece)
    return cut_spans(choose_grid(piece.looked), start, start + piece.nbytes)


def _find_start(piece: Piece) -> int:
    """Return the first byte of a piece within its tensor."""
    return piece.offset * FORMATS[piece.dtype].bits // 8


def _count_look_bytes(piece: Piece) -> int:
    if piece.looked is None:
        return 0
    return 1 if piece.nbytes == piece.looked[0] * piece.looked[1] else count_bytes(_list_spans(piece))


def fits_piece(stats: ChunkStats, piece: Piece) -> bool:
    """Whether these can be the statistics of a piece, because another machine computed them: none exceeds its size."""
    bits = FORMATS[piece.dtype].bits
    number, width = piece.nbytes * 8 // bits, bits // 8
    rows = piece.nbytes // piece.row if piece.row else 0
    positions = (stats.first_nan, stats.first_inf)
    patterns = (stats.max_pattern, stats.constant or 0)
    runs = choose_runs(piece.sampled[1]) if piece.sampled else []
    columns = 4 * sum(end - begin for begin, end in runs)
    return (
        min(stats.nan, stats.inf) >= 0
        and stats.nan + stats.inf <= number
        and all(-1 <= position < max(number, 1) for position in positions)
        and all(0 <= pattern < 1 << bits for pattern in patterns)
        and all(0 <= begin <= end <= piece.nbytes for begin, end in stats.zero_runs)
        and (len(stats.row_max), len(stats.row_fingerprints)) == (rows * width, rows * FINGERPRINT_BYTES)
        and len(stats.row_squares) % 4 == 0
        and (bool(piece.sampled) or not stats.row_squares)
        and len(stats.column_squares) == (columns if stats.row_squares else 0)
        and len(stats.elements) <= (piece.nbytes if piece.elements else 0)
        and len(stats.elements) % width == 0
        and len(stats.looks) == _count_look_bytes(piece)
        and [*map(len, stats.kept)]
        == ([] if piece.kept is None else count_places(piece.kept, _find_start(piece), piece.nbytes))
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
        chunks = scan_pieces(np.frombuffer(mapped, np.uint8), 0, batch.pieces)
        write_message(sink, msgspec.msgpack.encode(BatchStats(chunks)))
