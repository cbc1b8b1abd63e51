"""Streams the bytes of a tensor in blocks of bounded size, whichever way its checkpoint stores them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item, itemsize
from ckptcheck.checkpoint.megatron.tensor_reader import ItemArchives, read_tensor
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.source import Folder, Source
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.errors import EvidenceError
from ckptcheck.values.tensor_part import Sums

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.megatron.megatron import Megatron

BLOCK = 1 << 23
"""Bytes of a block, at most."""
LOCAL_BLOCK = 1 << 22
"""The same of a file on this machine, which needs no large requests: it stays in the processor's cache until it is digested."""


class BrokenTensor(EvidenceError):
    """The checkpoint is damaged where the tensor should be. A disk that fails is not a broken tensor."""


class TensorStream(msgspec.Struct, frozen=True):
    """One tensor whose bytes can be read in blocks."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    """The file that holds the tensor, or the folder of the files that hold its chunks."""
    blocks: Callable[[], Iterator[bytes]]
    """Yields the bytes in row-major order. Raises BrokenTensor, or EvidenceError if reading fails."""
    sum_all: Callable[[], Sums | None] | None = None
    """Returns the two sums of the shard digest of all bytes, in half the time; None where that is impossible. Raises the same."""


def open_streams(ckpt: Checkpoint) -> dict[str, TensorStream]:
    """Return tensor → stream of its bytes, for the tensors of the files that consumers load."""
    return {name: _file_stream(ckpt, name) for name in ckpt.tensors}


def _file_stream(ckpt: Checkpoint, name: str) -> TensorStream:
    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.tensor_to_file[name]]
    if name in shard.unfit:
        return TensorStream(tensor.dtype, tensor.shape, 0, shard.name, partial(_refuse, f"{name}: {shard.unfit[name]}"))
    begin = shard.locate(name)
    place = (ckpt.source, name, shard.name, begin, begin + tensor.nbytes)
    blocks, sum_all = partial(_read_range, *place), partial(_sum_range, *place)
    return TensorStream(tensor.dtype, tensor.shape, tensor.nbytes, shard.name, blocks, sum_all)


def _refuse(reason: str) -> Iterator[bytes]:
    raise BrokenTensor(reason)


def _read_range(source: Source, name: str, file: str, begin: int, end: int) -> Iterator[bytes]:
    most = BLOCK if source.local is None else LOCAL_BLOCK
    while begin < end:
        with _naming(file):
            part = source.read(file, begin, min(most, end - begin))
        if not part:
            raise _end_early(file, name)
        yield part
        begin += len(part)


def _sum_range(source: Source, name: str, file: str, begin: int, end: int) -> Sums | None:
    from ckptcheck.values.shard_digest import sum_file

    if not isinstance(source, Folder):
        return None
    with _naming(file):
        descriptor = source.open(file)
        try:
            found = sum_file(descriptor, begin, end - begin)
        finally:
            os.close(descriptor)
    if found is None:
        return None
    sums, got = found
    if got < end - begin:
        raise _end_early(file, name)
    return sums


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Raise EvidenceError that names the file, in place of OSError."""
    try:
        yield
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror or error}") from error


def _end_early(file: str, name: str) -> BrokenTensor:
    return BrokenTensor(f"{file} ends before {name} does")


def open_run_streams(run: Megatron) -> dict[str, TensorStream]:
    """Return tensor → stream of its bytes, which it joins from the chunks of a Megatron run. Elements in no chunk are zero.

    Weights have the names of Megatron's modules over the whole model. Optimizer states have the keys they are stored under.
    In a legacy checkpoint every rank's tensors are streams of their own, ``mp_rank_00_001/model/NAME``: the intact
    copies of other ranks must not hide a damaged copy.
    """
    if run.form == "legacy":
        return {name: _chunk_stream(run, tensor) for name, tensor in list_rank_tensors(run)}
    others = {key: tensor for key, tensor in run.tensors.items() if not is_weight(key)}
    return {name: _chunk_stream(run, tensor) for name, tensor in (run.weights | others).items()}


def list_rank_tensors(run: Megatron) -> Iterator[tuple[str, GlobalTensor]]:
    """Yield the streams of a legacy checkpoint: name → tensor of one rank, in one chunk."""
    for rank in run.ranks:
        item = Item(rank.file, 0, rank.size)
        for number, tensors in enumerate(rank.chunks):
            stage = f"model{number}" if len(rank.chunks) > 1 else "model"
            for name, tensor in tensors.items():
                chunk = Chunk((0,) * len(tensor.shape), tensor.shape, item, tensor.record, tensor.skip)
                folder = rank.folder.rpartition("/")[2]
                yield f"{folder}/{stage}/{name}", GlobalTensor(name, tensor.dtype, tensor.shape, (chunk,))


def _chunk_stream(run: Megatron, tensor: GlobalTensor) -> TensorStream:
    files = {run.path_of(chunk.item) for chunk in tensor.chunks if chunk.item is not None}
    file = files.pop() if len(files) == 1 else run.iteration or "."
    return TensorStream(tensor.dtype, tensor.shape, tensor.nbytes, file, partial(_read_chunks, run.archives, tensor))


def _read_chunks(archives: ItemArchives, tensor: GlobalTensor) -> Iterator[bytes]:
    for box in iter_boxes(tensor.shape, max(1, BLOCK // itemsize(tensor.dtype))):
        try:
            yield read_tensor(archives, tensor, box).tobytes()
        except EvidenceError as error:
            if isinstance(error.__cause__, UnreadableArchive):
                raise BrokenTensor(error.message) from error
            raise


def iter_boxes(shape: tuple[int, ...], most: int) -> Iterator[list[slice]]:
    """Yield boxes of at most `most` elements that cover a shape in row-major order. A box is one slice per axis.

    >>> list(iter_boxes((2, 3), 2))
    [[slice(0, 1, None), slice(0, 2, None)], [slice(0, 1, None), slice(2, 3, None)],
     [slice(1, 2, None), slice(0, 2, None)], [slice(1, 2, None), slice(2, 3, None)]]
    """
    if 0 in shape:
        return
    axis = next((axis for axis in range(len(shape)) if prod(shape[axis + 1 :]) <= most), len(shape))
    if axis == len(shape):
        yield []
        return
    step = max(1, most // prod(shape[axis + 1 :]))
    for outer in product(*map(range, shape[:axis])):
        for begin in range(0, shape[axis], step):
            yield [*(slice(at, at + 1) for at in outer), slice(begin, min(begin + step, shape[axis]))]
