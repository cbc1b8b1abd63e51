"""Computes the digest of a tensor, or of its shards, each where it lies, and adds them up without moving a byte.

**Definition.** The bytes of the whole tensor in row-major order, as little-endian digits of 32 bits, are d[0], d[1], …; the last is
padded with zeros. A block is 512 digits. Each half h of the digest is

    sum over i of  d[i] × factor[h][i mod 512] × weight[h][i div 512]   modulo 2^64

where the factors are fixed random numbers below 2^32, and the weights are odd random numbers below 2^64. At the end the number of
bytes, times an odd number, is added, so that zeros at the end count.

**Why shards add up.** The sum is linear: a shard is the tensor with zeros elsewhere, and zeros add nothing. So the sums of shards
that cover a tensor without overlap, whatever their shape (rows, columns, flat ranges), are added to that of the tensor.

**How likely two contents have one digest.** The factors do not depend on the contents. If two contents differ within
one block, their sums over the block are equal with a probability of at most 2^-32 for each half (a difference of two
digits, times a number below 2^32, has 2^32 different values modulo 2^64: Black et al. 1999, the hash NH of UMAC). A
difference of one block is multiplied by an odd number, so it does not vanish. The weighted differences of several
blocks cancel with a probability of 2^(v-63), where 2^v divides all of them: v is near 0 for most contents, and 31 if
nothing but the signs of every second bf16 differ. In all, two different contents have one digest with a probability
below 2^-50, and of about 2^-62 where they do not differ in such a pattern. Rows that change places, signs and constant
tensors are no exceptions: every digit has its own factor, every block its own weight. The digest finds accidents, not
forgeries: the numbers are public.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

DIGITS = 512
"""Digits of 32 bits in a block. Part of the definition."""
BLOCK = 4 * DIGITS
"""Bytes of a block."""
SEEDS = (0xA4093822299F31D0, 0x082EFA98EC4E6C89)
"""Digits of pi (nothing-up-my-sleeve numbers)."""
MASK, LOW = (1 << 64) - 1, (1 << 32) - 1
STEP = {"cpu": 1 << 12, "": 1 << 17}
"""Blocks whose weights are computed at a time, by device type: 8 MiB; on a GPU a quarter of a gigabyte keeps it busy."""
ROWS = {"cpu": 63, "": 1 << 12}
"""Blocks summed at a time, by device type: on a CPU few enough to fit the cache and to stay below 32,768 elements,
where torch starts to use several threads: synchronizing them costs more than they gain, above all on a busy machine."""
LONG_RUN, SCATTERED = 1 << 16, 1 << 23
"""A run of this many bytes is summed by itself; shorter runs are summed together, within this many bytes of the whole
tensor."""
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""The CPUs of this process, read at import: engines pin their threads later, and new threads inherit the pinning."""


def digest(tensor: Any) -> str:
    """Return the digest of a torch tensor of any shape, strides and dtype, in 32 hexadecimal digits. Raises ValueError for meta."""
    return format_words([(sum_shard(tensor), tensor.nbytes)])[0]


def digests(tensors: Sequence[Any]) -> list[str]:
    """Return the digests of many tensors: in parallel over the CPUs on a CPU; a GPU is waited for once, at the end."""
    if len(CPUS) < 2 or len(tensors) < 2 or any(tensor.device.type != "cpu" for tensor in tensors):
        return format_words([(sum_shard(tensor), tensor.nbytes) for tensor in tensors])
    with ThreadPoolExecutor(len(CPUS), initializer=os.sched_setaffinity, initargs=(0, CPUS)) as pool:
        return list(pool.map(digest, tensors))


def view_bytes(tensor: Any) -> Any:
    """Return the bytes of a torch tensor in the host's memory, in row-major order, as a numpy array."""
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def format_words(summed: Sequence[tuple[Any, int]]) -> list[str]:
    """Return the digests for results of `sum_shard` and numbers of bytes; wait for each device once."""
    import torch

    values: dict[Any, Iterator[list[int]]] = {}
    with torch.inference_mode():
        for device in dict.fromkeys(sums.device for sums, _ in summed):
            values[device] = iter(torch.stack([sums for sums, _ in summed if sums.device == device]).tolist())
    pairs = ((next(values[sums.device]), nbytes) for sums, nbytes in summed)
    return [format_sums((first, second), nbytes) for (first, second), nbytes in pairs]


def mix(seed: int, number: int) -> int:
    """Return the number-th 64-bit word of splitmix64 that starts from a seed."""
    word = (seed + (number + 1) * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


@functools.cache
def factors(half: int) -> tuple[int, ...]:
    """Return the factors of the digits of a block, in their order, for one half of the digest."""
    return tuple(mix(~SEEDS[half] & MASK, position) >> 32 for position in range(DIGITS))


def format_sums(sums: tuple[int, int], nbytes: int) -> str:
    """Return 32 hexadecimal digits for the sums of a whole tensor of `nbytes` bytes."""
    first, second = _size_weights()
    return f"{(sums[0] + nbytes * first) & MASK:016x}{(sums[1] + nbytes * second) & MASK:016x}"


@functools.cache
def _size_weights() -> tuple[int, int]:
    """Return the weight of the number of bytes, for each half of the digest."""
    return mix(SEEDS[0], -1) | 1, mix(SEEDS[1], -1) | 1


def add_sums(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """Join the additions of two shards of a tensor to its digest."""
    return (first[0] + second[0]) & MASK, (first[1] + second[1]) & MASK


def sum_shard(tensor: Any, offsets: Sequence[int] | None = None, shape: Sequence[int] | None = None) -> Any:
    """Return the addition of a shard to the two sums of its tensor: a torch tensor of two int64, on the shard's device.

    tensor: the shard, a torch tensor of any strides and dtype. Raises ValueError for one on the meta device.
    offsets: the index of its first element in the whole tensor, one number an axis; None for the origin. shape: of the
    whole tensor; None if the shard is the whole.
    """
    import torch

    if tensor.device.type == "meta":
        raise ValueError("a tensor on the meta device holds no numbers")
    sums = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    with torch.inference_mode():
        tensor = tensor.detach()
        width = tensor.element_size()
        if shape is None and tensor.dim() > 1 and tensor.nbytes > SCATTERED and not tensor.is_contiguous():
            # a few rows at a time: a copy of the whole may not fit a GPU that an engine fills
            step, shape = max(1, len(tensor) * SCATTERED // tensor.nbytes), tensor.shape
            for begin in range(0, len(tensor), step):
                sums += sum_shard(tensor[begin : begin + step], (begin, *(0,) * (len(shape) - 1)), shape)
            return sums
        for index, start, stride in iterate_runs(tensor.shape, offsets, shape):
            rows = tensor[index].contiguous()
            rows = rows.view(1, -1) if not stride else rows.view(len(rows), -1)
            rows = rows.view(torch.uint8)
            step = max(1, SCATTERED // max(stride * width, 1)) if rows.shape[1] < LONG_RUN else 1
            for row in range(0, len(rows), step):
                part = rows[row : row + step]
                if len(part) > 1:  # zeros between the runs add nothing
                    spread = torch.zeros(len(part), stride * width, dtype=torch.uint8, device=part.device)
                    spread[:, : part.shape[1]] = part
                    part = spread
                sums += _sum_run(part.reshape(-1), (start + row * stride) * width)
    return sums


def sum_pieces(tensor: Any, pieces: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the addition of each piece of a joined tensor to the sums of the piece's own tensor.

    pieces: [first element of the joined tensor, shape, elements from one to the next along each axis, index of the piece's first
    element in its own tensor, shape of that tensor].
    """
    flat = tensor.detach().contiguous()
    return [
        sum_shard(flat.as_strided(extent, strides, flat.storage_offset() + begin), origin, shape)
        for begin, extent, strides, origin, shape in pieces
    ]


def iterate_runs(
    part: Sequence[int], offsets: Sequence[int] | None, shape: Sequence[int] | None
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield where the parts of a shard lie in the whole tensor.

    part: the shape of the shard. offsets, shape: as for `sum_shard`.
    Yields an index into the shard, the element of the whole tensor at which that part of the shard begins, and the
    distance between its rows in elements if they are runs with gaps, else 0.

    >>> list(iterate_runs((2, 3), (4, 0), (8, 3)))  # rows: one run
    [((), 12, 0)]
    >>> list(iterate_runs((2, 2, 3), (0, 0, 6), (2, 2, 9)))  # columns of two matrices
    [((0,), 6, 9), ((1,), 24, 9)]
    """
    shape = tuple(part) if shape is None else tuple(shape)
    offsets = (0,) * len(shape) if offsets is None else tuple(offsets)
    if 0 in part:
        return
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    origin = sum(offset * stride for offset, stride in zip(offsets, strides))
    axis = len(shape)
    while axis and part[axis - 1] == shape[axis - 1]:
        axis -= 1  # from this axis on the shard is whole
    if axis <= 1:
        yield (), origin, 0
        return
    # The shard is cut along axis - 1: its runs lie one stride of axis - 2 apart.
    for index in itertools.product(*map(range, part[: axis - 2])):
        yield index, origin + sum(each * stride for each, stride in zip(index, strides)), strides[axis - 2]


def _sum_run(run: Any, start: int) -> Any:
    """Return the two sums of consecutive bytes that begin at byte `start` of their tensor."""
    import torch

    total = torch.zeros(2, dtype=torch.int64, device=run.device)
    at, step = 0, STEP.get(run.device.type, STEP[""])
    while at < len(run):
        skip = (start + at) % BLOCK
        take = min(step * BLOCK - skip, len(run) - at)
        block, blocks = (start + at) // BLOCK, -(-(skip + take) // BLOCK)
        part = run[at : at + take]
        if skip or take % BLOCK or part.storage_offset() % 8 or part.data_ptr() % 8:
            padded = torch.zeros(blocks * BLOCK, dtype=torch.uint8, device=run.device)
            padded[skip : skip + take] = part
            part = padded
        words = part.view(torch.int64).view(blocks, DIGITS // 2)
        for half, sums in enumerate(_sum_blocks(words)):
            total[half] += (sums * _weigh_blocks(half, block, blocks, run.device)).sum()
        at += take
    return total


def _sum_blocks(words: Any) -> Any:
    """Return [half, block]: the sums of blocks, unweighted. words: [block, word]."""
    kernel = block_sum_kernel(words.device)
    return _sum_blocks_with_torch(words) if kernel is None else kernel(words)


@functools.cache
def block_sum_kernel(device: Any) -> Callable[[Any], Any] | None:
    """Return a kernel that sums blocks in one pass over memory; None if none agrees with torch on a test table."""
    import torch

    if device.type != "cuda":
        return None
    words = (torch.arange(5 * DIGITS // 2, device=device) * -7046029254386353131).view(5, -1)
    try:
        from .shard_digest_kernel import sum_blocks

        kernel = functools.partial(sum_blocks, tables=[_factor_tensors(half, device) for half in (0, 1)])
        return kernel if torch.equal(kernel(words), _sum_blocks_with_torch(words)) else None
    except Exception:  # no Triton, no compiler for it, a GPU that it does not know
        return None


def _sum_blocks_with_torch(words: Any) -> Any:
    import torch

    sums = torch.empty(2, len(words), dtype=torch.int64, device=words.device)
    step = min(len(words), ROWS.get(words.device.type, ROWS[""]))
    low, high, product = (torch.empty(step, words.shape[1], dtype=torch.int64, device=words.device) for _ in range(3))
    tables = [_factor_tensors(half, words.device) for half in (0, 1)]
    for at in range(0, len(words), step):
        part = words[at : at + step]
        if len(part) < step:
            low, high, product = low[: len(part)], high[: len(part)], product[: len(part)]
        torch.bitwise_and(part, LOW, out=low)
        torch.bitwise_right_shift(part, 32, out=high).bitwise_and_(LOW)
        for half, (even, odd) in enumerate(tables):
            target = sums[half, at : at + step]
            torch.sum(torch.mul(low, even, out=product), 1, out=target)
            target += torch.mul(high, odd, out=product).sum(1)
    return sums


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


@functools.cache
def _factor_tensors(half: int, device: Any) -> tuple[Any, Any]:
    """Return the factors of the low and of the high digits of a block's words."""
    import torch

    values = torch.tensor(factors(half), dtype=torch.int64, device=device)
    return values[0::2].contiguous(), values[1::2].contiguous()


def _weigh_blocks(half: int, first: int, number: int, device: Any) -> Any:
    """Return the weights of `number` blocks from block `first`, as signed words."""
    import torch

    word = torch.arange(first + 1, first + number + 1, dtype=torch.int64, device=device)
    word = word * _signed(0x9E3779B97F4A7C15) + _signed(SEEDS[half])
    for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ _shift_right(word, shift)) * _signed(odd)
    return (word ^ _shift_right(word, 31)) | 1


def _shift_right(word: Any, by: int) -> Any:
    """Shift signed words as if they were unsigned."""
    return (word >> by) & ((1 << (64 - by)) - 1)
