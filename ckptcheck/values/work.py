"""The work of a value pass: the files cut into pieces, and pieces put together into batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.source import Source
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.worker import Batch, Piece

BATCH = 1 << 27
"""The most bytes given to a worker at a time: the fewer batches, the less there is to say and to hear."""
SHARES = 16
"""Batches that each worker should have, so that none is left with much to do when the others are done."""
PIECES = 400
"""The most pieces in a batch: two batches have to fit into a pipe, 64 KiB."""


@dataclass(frozen=True)
class Work:
    """What is to be looked at. shards: those whose every tensor can be read. rows: as `plan_of` was given them.

    identities: shard → what would change if its file were replaced or written to from now on.
    """

    shards: Mapping[str, Shard]
    batches: list[Batch]
    rows: Mapping[str, int]
    identities: Mapping[str, tuple[int, ...] | None]
    nbytes: int


def plan_of(source: Source, shards: Mapping[str, Shard], rows: Mapping[str, int], most: int) -> Work:
    """Cut shards into batches of at most about `most` bytes.

    rows: matrix → bytes of a row, of those whose rows are to be glanced at.
    """
    whole = {name: shard for name, shard in shards.items() if shard.readable and _tiled(shard)}
    identities = {name: identity_of(source, name) for name in whole}
    nbytes = sum(tensor.nbytes for shard in whole.values() for tensor in shard.tensors.values())
    return Work(whole, list(_batches(source, whole, rows, most)), rows, identities, nbytes)


def _tiled(shard: Shard) -> bool:
    """Whether every tensor lies within the file, so that each can be read."""
    size = shard.size - shard.data_start
    return all(
        0 <= tensor.data_offsets[0] <= tensor.data_offsets[1] <= size
        and tensor.dtype in FORMATS
        and tensor.nbytes % (FORMATS[tensor.dtype].bits // 8) == 0
        for tensor in shard.tensors.values()
    )


def _batches(source: Source, shards: Mapping[str, Shard], rows: Mapping[str, int], most: int) -> Iterator[Batch]:
    """Cut the data of the shards into batches: small tensors together, large ones in pieces of whole elements."""
    number = 0
    for shard in shards.values():
        path = str(source.local / shard.name) if source.local is not None else shard.name
        pieces: list[Piece] = []
        room = most
        for name, tensor in shard.tensors.items():
            row = rows.get(name, 0)
            width = FORMATS[tensor.dtype].bits // 8
            unit = row or width
            begin, end = tensor.data_offsets
            at = begin
            while at < end:
                nbytes = min(end - at, room // unit * unit or unit)
                pieces.append(Piece(shard.data_start + at, nbytes, tensor.dtype, number, (at - begin) // width, row))
                at += nbytes
                room -= nbytes
                if room < 8 or len(pieces) == PIECES:
                    yield Batch(shard.name, path, shard.size, pieces)
                    pieces, room = [], most
            number += 1
        if pieces:
            yield Batch(shard.name, path, shard.size, pieces)


def identity_of(source: Source, name: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced or written to; None where it cannot be told."""
    if source.local is None:
        return None
    try:
        status = os.stat(Path(source.local) / name)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
