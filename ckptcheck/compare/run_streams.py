"""The bytes of a Megatron run as streams: each tensor is joined from its chunks, in whatever files they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod

from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item, itemsize
from ckptcheck.checkpoint.megatron.tensor_reader import ItemArchives, read_tensor
from ckptcheck.checkpoint.megatron.weights import is_weight
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.megatron_side import build_megatron_side
from ckptcheck.compare.matching.side import ComparisonSide
from ckptcheck.errors import EvidenceError
from ckptcheck.values.tensor_part import packed_strides
from ckptcheck.values.tensor_stream import BLOCK, BrokenTensor, TensorStream


def open_run_streams(run: Megatron) -> dict[str, TensorStream]:
    """Return tensor → stream of its bytes, which it joins from the chunks of a Megatron run. Elements in no chunk are zero.

    Weights have the names of Megatron's modules over the whole model. Optimizer states have the keys they are stored under.
    In a legacy checkpoint every rank's tensors are streams of their own, ``mp_rank_00_001/model/NAME``: the intact
    copies of other ranks must not hide a damaged copy.
    """
    if run.form == "legacy":
        return {name: _chunk_stream(run, tensor) for name, tensor in _list_rank_tensors(run)}
    others = {key: tensor for key, tensor in run.tensors.items() if not is_weight(key)}
    return {name: _chunk_stream(run, tensor) for name, tensor in (run.weights | others).items()}


def _list_rank_tensors(run: Megatron) -> Iterator[tuple[str, GlobalTensor]]:
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


def build_stream_side(run: Megatron) -> ComparisonSide:
    """Describe a run whose weights lie in its streams."""
    return build_megatron_side(run, _find_in_ranks(run) if run.form == "legacy" else _find_in_stream)


def _find_in_stream(run: Megatron, name: str, tensor: GlobalTensor) -> TensorLayout:
    """Return a weight as the whole of its stream."""
    return TensorLayout.contiguous(tensor.dtype, itemsize(tensor.dtype), tensor.shape, name, 0)


def _find_in_ranks(run: Megatron) -> Callable[[Megatron, str, GlobalTensor], TensorLayout]:
    """Return a function that finds a weight's chunks in a legacy checkpoint, whose streams are tensors of ranks."""
    streams: dict[tuple[str, str], list[tuple[str, Chunk]]] = {}
    for name, tensor in _list_rank_tensors(run):
        (chunk,) = tensor.chunks
        streams.setdefault(_place(chunk), []).append((name, chunk))

    def find(run: Megatron, name: str, tensor: GlobalTensor) -> TensorLayout:
        size, chunks = itemsize(tensor.dtype), []
        for chunk in tensor.chunks:
            stream, begin = next(
                (
                    (stream, chunk.skip - held.skip)
                    for stream, held in streams.get(_place(chunk), ())
                    if held.skip <= chunk.skip and chunk.skip + chunk.elements <= held.skip + held.elements
                ),
                ("", 0),
            )
            if not stream:
                raise UnreadableArchive("no rank holds it")
            strides = packed_strides(chunk.sizes, size) if chunk.sizes else ()
            chunks.append(FileChunk(chunk.offsets, chunk.sizes, stream, begin * size, strides))
        return TensorLayout(tensor.dtype, size, tensor.shape, tuple(chunks))

    return find


def _place(chunk: Chunk) -> tuple[str, str]:
    return (chunk.item.file if chunk.item is not None else ""), chunk.record
