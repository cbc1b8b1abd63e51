"""The bytes of a tensor one after another, in blocks of bounded size, whichever way its checkpoint stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item, width
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.megatron.run import Megatron

BLOCK = 1 << 23


class BrokenTensor(EvidenceError):
    """What the checkpoint holds in a tensor's place is not that tensor. An OSError of the disk is something else."""


@dataclass(frozen=True)
class Stream:
    """One tensor. file: that holds it, or the folder of those that hold its chunks.

    blocks: yields its bytes in row-major order; raises BrokenTensor, or EvidenceError where reading fails.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    blocks: Callable[[], Iterator[bytes]] = field(repr=False)


def streams_of(ckpt: Checkpoint) -> dict[str, Stream]:
    """Return tensor → its bytes, for the loaded files."""
    return {name: _stored(ckpt, name) for name in ckpt.tensors}


def _stored(ckpt: Checkpoint, name: str) -> Stream:
    tensor, shard = ckpt.tensors[name], ckpt.shards[ckpt.holders[name]]

    def blocks() -> Iterator[bytes]:
        at, end = (shard.data_start + offset for offset in tensor.data_offsets)
        while at < end:
            try:
                part = ckpt.source.read(shard.name, at, min(BLOCK, end - at))
            except OSError as error:
                raise EvidenceError(f"cannot read {shard.name}: {error.strerror or error}") from error
            if not part:
                raise BrokenTensor(f"{shard.name} ends before {name} does")
            yield part
            at += len(part)

    return Stream(tensor.dtype, tensor.shape, tensor.nbytes, shard.name, blocks)


def streams_of_run(run: Megatron) -> dict[str, Stream]:
    """Return tensor → its bytes, put together from the chunks that hold them; what no chunk holds counts as zero.

    Weights have the names that Megatron's modules give them, over the whole model; optimizer states the keys they are stored
    under. In a legacy checkpoint every rank's tensors are listed by themselves, as ``mp_rank_00_001/model/NAME``: a copy that
    rots on one rank must not hide behind the others'.
    """
    if run.form == "legacy":
        return {name: _assembled(run, tensor) for name, tensor in _held(run)}
    others = {key: tensor for key, tensor in run.tensors.items() if not is_weight(key)}
    return {name: _assembled(run, tensor) for name, tensor in (run.weights | others).items()}


def _held(run: Megatron) -> Iterator[tuple[str, GlobalTensor]]:
    for rank in run.ranks:
        item = Item(rank.file, 0, rank.size)
        for number, tensors in enumerate(rank.chunks):
            stage = f"model{number}" if len(rank.chunks) > 1 else "model"
            for name, found in tensors.items():
                chunk = Chunk((0,) * len(found.shape), found.shape, item, found.record, found.skip)
                where = rank.folder.rpartition("/")[2]
                yield f"{where}/{stage}/{name}", GlobalTensor(name, found.dtype, found.shape, (chunk,))


def _assembled(run: Megatron, tensor: GlobalTensor) -> Stream:
    files = {run.path_of(chunk.item) for chunk in tensor.chunks if chunk.item is not None}
    file = files.pop() if len(files) == 1 else run.iteration or "."

    def blocks() -> Iterator[bytes]:
        for box in boxes(tensor.shape, max(1, BLOCK // width(tensor.dtype))):
            try:
                yield run.read(tensor, box).tobytes()
            except EvidenceError as error:
                if isinstance(error.__cause__, UnreadableArchive):
                    raise BrokenTensor(error.message) from error
                raise

    return Stream(tensor.dtype, tensor.shape, tensor.nbytes, file, blocks)


def boxes(shape: tuple[int, ...], most: int) -> Iterator[list[slice]]:
    """Cut a shape into boxes of at most `most` elements that follow each other in row-major order; a slice an axis.

    >>> list(boxes((2, 3), 2))
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
