"""Streams the bytes of a tensor in blocks of bounded size, whichever way its checkpoint stores them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.source import Folder, Source
from ckptcheck.errors import EvidenceError
from ckptcheck.values.tensor_part import Sums

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

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
            return sum_file(descriptor, begin, end - begin)
        except EOFError:
            raise _end_early(file, name) from None
        finally:
            os.close(descriptor)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Raise EvidenceError that names the file, in place of OSError."""
    try:
        yield
    except OSError as error:
        raise EvidenceError(f"cannot read {file}: {error.strerror or error}") from error


def _end_early(file: str, name: str) -> BrokenTensor:
    return BrokenTensor(f"{file} ends before {name} does")
