"""Computes the same digest as `ckptcheck_worker.shard_digest`, with numpy, or in C if the kernel was compiled."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import (
    BLOCK,
    DIGITS,
    LONG_RUN,
    MASK,
    SCATTERED,
    SEEDS,
    add_sums,
    factors,
    format_sums,
    iterate_runs,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["add_sums", "format_sums", "is_compiled", "sum_bytes", "sum_file", "sum_memory", "sum_rows", "sum_shard"]

KERNEL_VERSION = 3
"""The return value of `shard_digest_version` in the source that belongs to this file."""
LIBRARY = Path(__file__).with_name("_shard_digest.so")
LINE = 64
"""Bytes of a cache line, and of the widest load."""
READ_BYTES = 1 << 18
"""Bytes of a read of the kernel, which stay in the processor's own cache until they are summed."""
STEP = 1 << 8
"""Blocks that numpy sums at a time: half a megabyte, which stays in the cache."""

Sums = tuple[int, int]
Kernel = Callable[[Any, int, int, int, int, int], Sums]
"""Takes bytes or an address, number, length and pitch of the runs, and start and stride as `sum_rows`; all in bytes."""


def sum_bytes(raw: bytes | NDArray[np.uint8], start: int = 0) -> Sums:
    """Return the addition of consecutive bytes of a tensor to its two sums. start: offset of the first one."""
    kernels = _load_kernels()
    if kernels is not None and isinstance(raw, bytes):
        return kernels.add(raw, 1, len(raw), len(raw), start, 0)
    import numpy as np

    data = np.frombuffer(raw, np.uint8)
    return sum_rows(data.reshape(1, -1), start, 0) if data.size else (0, 0)


def sum_shard(values: NDArray[Any], offsets: Sequence[int] | None = None, shape: Sequence[int] | None = None) -> Sums:
    """Return the addition of a shard to the two sums of its tensor.

    offsets: the index of its first element in the whole tensor, one number an axis; None for the origin.
    shape: of the whole tensor; None if the shard is the whole.
    """
    import numpy as np

    sums, width = (0, 0), values.itemsize
    for index, start, stride in iterate_runs(values.shape, offsets, shape):
        rows = np.ascontiguousarray(values[index])
        rows = rows.reshape(len(rows) if stride else 1, -1).view(np.uint8)
        sums = add_sums(sums, sum_rows(rows, start * width, stride * width))
    return sums


def sum_rows(rows: NDArray[np.uint8], start: int, stride: int) -> Sums:
    """Return the addition of runs of bytes to the two sums of their tensor.

    rows: [run, byte], in row-major order.
    start: offset of the first run in the tensor, in bytes. stride: bytes from one run to the next there.
    """
    kernels = _load_kernels()
    if kernels is None:
        return sum_rows_numpy(rows, start, stride)
    number, length = rows.shape
    return kernels.add(rows.ctypes.data, number, length, rows.strides[0], start, stride)


def sum_memory(address: int, nbytes: int) -> Sums | None:
    """Return the two sums of a tensor's bytes, which lie from an address on; None where the kernel is not compiled.

    The caller keeps the memory alive. It takes a quarter of the time of `sum_shard` for a small tensor.
    """
    kernels = _load_kernels()
    return None if kernels is None else kernels.add(address, 1, nbytes, nbytes, 0, 0)


def sum_file(file: int, begin: int, nbytes: int, start: int = 0) -> Sums | None:
    """Return the addition of a range of an open file to the two sums of its tensor; None where the kernel is not compiled.

    file: a descriptor. start: offset of the first byte in the tensor. Raises OSError, and EOFError if the file ends before.
    """
    kernels = _load_kernels()
    if kernels is None:
        return None
    sums, got = kernels.read(file, begin, nbytes, start)
    if got < nbytes:
        raise EOFError
    return sums


def is_compiled() -> bool:
    """Whether the compiled kernel exists and belongs to this version."""
    return _load_kernels() is not None


def sum_rows_numpy(rows: NDArray[np.uint8], start: int, stride: int) -> Sums:
    """Do the same as `sum_rows`, with numpy alone."""
    import numpy as np

    sums = (0, 0)
    step = max(1, SCATTERED // max(stride, 1)) if rows.shape[1] < LONG_RUN else 1
    for row in range(0, len(rows), step):
        part = rows[row : row + step]
        if len(part) > 1:  # Zeros between the runs add nothing.
            spread = np.zeros((len(part), stride), np.uint8)
            spread[:, : part.shape[1]] = part
            part = spread
        sums = add_sums(sums, _sum_run(part.reshape(-1), start + row * stride))
    return sums


def _sum_run(run: NDArray[np.uint8], start: int) -> Sums:
    import numpy as np

    total, at = [0, 0], 0
    while at < run.size:
        skip = (start + at) % BLOCK
        take = min(STEP * BLOCK - skip, run.size - at)
        block, blocks = (start + at) // BLOCK, -(-(skip + take) // BLOCK)
        part = run[at : at + take]
        if skip or take % BLOCK:
            part = np.zeros(blocks * BLOCK, np.uint8)
            part[skip : skip + take] = run[at : at + take]
        digits = part.view("<u4").reshape(blocks, DIGITS).astype(np.uint64)
        for half in (0, 1):
            sums = (digits * _factor_array(half)).sum(1)
            total[half] += int((sums * _weigh_blocks(half, block, blocks)).sum())
        at += take
    return total[0] & MASK, total[1] & MASK


@cache
def _factor_array(half: int) -> NDArray[np.uint64]:
    import numpy as np

    return np.array(factors(half), np.uint64)


@lru_cache(256)  # of the tensors of a small model, each time that they are digested
def _weigh_blocks(half: int, first: int, number: int) -> NDArray[np.uint64]:
    """Return the weights of `number` blocks from block `first`."""
    import numpy as np

    word = np.arange(first + 1, first + number + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        SEEDS[half]
    )
    for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(odd)
    weights: NDArray[np.uint64] = (word ^ (word >> np.uint64(31))) | np.uint64(1)
    return weights


class Kernels(NamedTuple):
    """The functions of the compiled library."""

    add: Kernel
    read: Callable[[int, int, int, int], tuple[Sums, int]]
    """As `sum_file`, and also returns how many of the bytes the file has."""


@cache
def _load_kernels() -> Kernels | None:
    """Return the compiled functions; None without them, or if they come from another version of the source."""
    if sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY), use_errno=True)
        if library.shard_digest_version() != KERNEL_VERSION:
            return None
        add, read = library.shard_digest_add, library.shard_digest_read
    except (OSError, AttributeError):
        return None
    word, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    add.argtypes = [pointer, size, size, size, word, word, pointer, pointer, pointer]
    add.restype = None
    read.argtypes = [ctypes.c_int, word, word, word, pointer, size, pointer, pointer, pointer]
    read.restype = ctypes.c_int64
    words = [each for half in (0, 1) for digit in (0, 1) for each in factors(half)[digit::2]]
    table, seeds = (word * (len(words) + LINE // 8))(), (word * len(SEEDS))(*SEEDS)
    # A load that crosses a cache line takes twice as long; and to ask for an address takes as long as to sum a small tensor.
    constants = ctypes.addressof(table) + -ctypes.addressof(table) % LINE, ctypes.addressof(seeds)
    ctypes.memmove(constants[0], (word * len(words))(*words), 8 * len(words))
    free: list[mmap.mmap] = []

    def sum_compiled(
        raw: Any, number: int, length: int, pitch: int, start: int, stride: int, keep: object = (table, seeds)
    ) -> Sums:
        sums = (word * 2)()
        add(raw, number, length, pitch, start, stride, *constants, sums)
        return sums[0], sums[1]

    def read_compiled(file: int, begin: int, nbytes: int, start: int) -> tuple[Sums, int]:
        sums = (word * 2)()
        block = free.pop() if free else mmap.mmap(-1, READ_BYTES)  # begins at a page
        try:
            address = ctypes.addressof(ctypes.c_char.from_buffer(block))
            got = read(file, begin, nbytes, start, address, READ_BYTES, *constants, sums)
        finally:
            free.append(block)
        if got < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return (sums[0], sums[1]), got

    return Kernels(sum_compiled, read_compiled)
