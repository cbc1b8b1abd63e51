"""Plans a value pass: cuts the files into pieces, and puts pieces together into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from ckptcheck.checkpoint.header import Shard
from ckptcheck.checkpoint.source import Source
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.values.channel_sample import is_sampled
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.first_looks import Shape, choose_grid
from ckptcheck.values.kept_places import Places
from ckptcheck.values.sketch import SKETCHED, choose_sample_size
from ckptcheck.values.worker import Batch, Piece

MAX_BATCH_BYTES = 1 << 27
"""The most bytes in a batch. Fewer batches mean fewer messages between the processes."""
BATCHES_PER_WORKER = 16
"""Batches that each worker should get, so that no worker has much left to do when the others are done."""
TAIL_SHARE = 128
"""Up to this part of a batch at the end of a file is added to its last one: by itself it takes a request of a store."""
MAX_PIECES = 400
"""The most pieces in a batch: two batches have to fit into a pipe of 64 KiB."""


class ScanPlan(msgspec.Struct, frozen=True):
    """The shards and pieces that a value pass scans."""

    shards: Mapping[str, Shard]
    """The shards whose header can be read."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """Shard → its tensors that are scanned: not those of `Shard.unfit`, nor those that consumers load from another file."""
    batches: list[Batch]
    rows: Mapping[str, int]
    """Matrix → bytes of a row, for matrices whose rows get statistics; the pass samples channels of others."""
    nbytes: int
    """Bytes of all tensors that are scanned."""
    kept: Mapping[str, Places]
    """Tensor → the places whose bytes are kept."""


def plan_scan(
    source: Source,
    shards: Mapping[str, Shard],
    places: Mapping[str, str],
    rows: Mapping[str, int],
    most: int,
    *,
    takes_samples: bool = False,
    kept: Mapping[str, Places] = MappingProxyType({}),
) -> ScanPlan:
    """Cut shards into batches of about `most` bytes at most.

    places: tensor → the file that consumers load it from.
    rows: matrix → bytes of a row, for the matrices whose rows get statistics of their own.
    takes_samples: take a sample of every tensor of numbers, for sketches.
    kept: tensor → the places whose bytes are kept; cuts of tensors with `rows` and of those whose channels are sampled.
    """
    readable = {name: shard for name, shard in shards.items() if shard.readable}
    tensors = {
        file: {name: tensor for name, tensor in shard.fitting.items() if places.get(name, file) == file}
        for file, shard in readable.items()
    }
    sizes = {file: sum(tensor.nbytes for tensor in scanned.values()) for file, scanned in tensors.items()}
    sample = choose_sample_size(sum(map(len, tensors.values()))) if takes_samples else 0
    batches = list(_cut_batches(source, readable, tensors, sizes, rows, most, sample, kept))
    return ScanPlan(readable, tensors, batches, rows, sum(sizes.values()), kept)


def _cut_batches(
    source: Source,
    shards: Mapping[str, Shard],
    tensors: Mapping[str, Mapping[str, Tensor]],
    sizes: Mapping[str, int],
    rows: Mapping[str, int],
    most: int,
    sample: int,
    kept: Mapping[str, Places],
) -> Iterator[Batch]:
    """Yield the data of the shards in batches: small tensors together, large ones in pieces of whole elements or rows.

    sizes: bytes of the scanned tensors of each shard.
    sample: elements of each tensor that are sampled; each piece has its share of them.
    """
    number = 0
    for shard in shards.values():
        path = source.files[shard.name].path or shard.name
        pieces: list[Piece] = []
        room, left = most, sizes[shard.name]
        for name, tensor in tensors[shard.name].items():
            row = rows.get(name, 0)
            width = FORMATS[tensor.dtype].bits // 8
            sampled = None if row or not is_sampled(name, tensor) else (tensor.shape[0], tensor.shape[1])
            unit = row or (sampled[1] * width if sampled else width)
            begin, end = tensor.data_offsets
            looked = _choose_looked(tensor.shape, end - begin)
            places = kept.get(name)
            start = begin
            size = sample if tensor.dtype in SKETCHED else 0
            while start < end:
                nbytes = min(end - start, room // unit * unit or unit)
                offset = (start - begin) // width
                share = -(-size * nbytes // (end - begin))
                at = shard.data_start + start
                pieces.append(Piece(at, nbytes, tensor.dtype, number, offset, row, sampled, share, looked, places))
                start += nbytes
                room -= nbytes
                left -= nbytes
                if left <= most // TAIL_SHARE:
                    room = max(room, left)
                if room < 8 or len(pieces) == MAX_PIECES:
                    yield Batch(shard.name, path, shard.size, pieces)
                    pieces, room = [], most
            number += 1
        if pieces:
            yield Batch(shard.name, path, shard.size, pieces)


def _choose_looked(shape: tuple[int, ...], nbytes: int) -> Shape | None:
    """Return the rows of a matrix and the bytes of a row if it has places to look at; a vector is one row."""
    rows = shape[0] if len(shape) == 2 else 1
    if len(shape) not in (1, 2) or not rows or nbytes % rows:
        return None
    looked = rows, nbytes // rows
    return looked if choose_grid(looked).spans else None
