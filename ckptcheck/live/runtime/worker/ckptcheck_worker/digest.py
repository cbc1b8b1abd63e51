"""Computes a 128-bit digest of a tensor's bytes on the tensor's device, with ordinary torch operations.

The bytes, in row-major order and padded with zeros, are little-endian words of 64 bits. Each row of WIDTH words is reduced to one
word: every word is mixed (its high half is xored into its low half, so that a flip of the highest bit is not lost
in a sum modulo 2^64), multiplied by the odd number of its position, and the products are summed. The words of the rows are
reduced in the same way until one is left (a tree of multilinear hashes, Lemire and Kaser 2014, arXiv:1202.4961). Two sets
of odd numbers give two such words, and the number of bytes is added at the end. Every step is a bijection of any one word,
so a change within one word always changes both halves. The digest finds accidents, not forgeries: the numbers are public.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WIDTH = 4096
"""Words of one row. Part of the definition: a different width gives different digests."""
ROWS = {"cpu": 7, "": 2048}
"""Rows per step, by device type. On a GPU enough to keep it busy; on a CPU few enough to fit the cache and to stay
below 32,768 elements, where torch starts to use several threads: synchronizing them costs more than they gain, above
all on a busy machine."""
MAX_ALIGNED_WORDS = WIDTH << 15
"""Words per step on a GPU for aligned memory, which needs no copy: a gigabyte."""
MASK = (1 << 64) - 1
LOW = (1 << 32) - 1
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""The CPUs of this process, read at import: engines pin their threads later, and new threads inherit the pinning."""
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""The first digits of pi (nothing-up-my-sleeve numbers)."""


@functools.cache
def multipliers(half: int) -> tuple[int, ...]:
    """Return the WIDTH odd numbers below 2^64 of one half of the digest, by splitmix64."""
    state, numbers = SEEDS[half], []
    for _ in range(WIDTH):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        numbers.append((word ^ (word >> 31)) | 1)
    return tuple(numbers)


def format_digest(words: tuple[int, ...], nbytes: int) -> str:
    """Return 32 hexadecimal digits for the two words to which `nbytes` bytes were reduced."""
    return "".join(f"{(words[half] + nbytes * multipliers(half)[0]) & MASK:016x}" for half in (0, 1))


def digest(tensor: Any) -> str:
    """Return the digest of a torch tensor of any shape, strides and dtype, in 32 hexadecimal digits.

    Needs memory for three blocks beside the tensor. Raises ValueError for a tensor without memory (meta).
    """
    return _digest_all([tensor])[0]


def copy_bytes(tensor: Any) -> Any:
    """Return the bytes of a torch tensor with one dimension at least, in row-major order, as a numpy array on the CPU."""
    import torch

    return tensor.detach().contiguous().view(torch.uint8).cpu().numpy()


def digests(tensors: Sequence[Any]) -> list[str]:
    """Return the digests of many tensors: one after the other on a GPU, in parallel over the CPUs on a CPU."""
    if len(CPUS) < 2 or len(tensors) < 2 or any(tensor.device.type != "cpu" for tensor in tensors):
        return _digest_all(tensors)
    with ThreadPoolExecutor(len(CPUS), initializer=os.sched_setaffinity, initargs=(0, CPUS)) as pool:
        return list(pool.map(digest, tensors))


def _digest_all(tensors: Sequence[Any]) -> list[str]:
    """Digest tensors, and synchronize with each device once, at the end."""
    return format_words([(reduce_tensor(tensor), tensor.numel() * tensor.element_size()) for tensor in tensors])


def reduce_tensor(tensor: Any) -> Any:
    """Reduce a tensor to two words on its device, without waiting for it. Raises ValueError for meta."""
    import torch

    with torch.inference_mode():
        return _digest_words(tensor.detach())


def format_words(reduced: Sequence[tuple[Any, int]]) -> list[str]:
    """Return the digests for results of `reduce_tensor` and numbers of bytes; wait for each device once."""
    import torch

    values: dict[Any, Iterator[list[int]]] = {}
    with torch.inference_mode():
        for device in dict.fromkeys(words.device for words, _ in reduced):
            values[device] = iter(torch.stack([words for words, _ in reduced if words.device == device]).tolist())
    return [
        format_digest((first & MASK, second & MASK), nbytes)
        for words, nbytes in reduced
        for first, second in (next(values[words.device]),)
    ]


def _digest_words(tensor: Any) -> Any:
    """Reduce a tensor to two words on its device."""
    import torch

    if tensor.device.type == "meta":
        raise ValueError("a tensor on the meta device holds no numbers")
    nbytes = tensor.numel() * tensor.element_size()
    if not nbytes:
        return torch.zeros(2, dtype=torch.int64, device=tensor.device)
    size = WIDTH * min(ROWS.get(tensor.device.type, ROWS[""]), -(-nbytes // (8 * WIDTH)))
    hash_rows = row_hash_kernel(tensor.device)
    if hash_rows is None:
        return _reduce_rows(_iterate_blocks(tensor, size, size), _torch_row_hasher(size, tensor.device), tensor.device)
    return _reduce_rows(_iterate_blocks(tensor, size, MAX_ALIGNED_WORDS), hash_rows, tensor.device)


def _reduce_rows(blocks: Iterator[Any], hash_rows: Callable[[Any], Sequence[Any]], device: Any) -> Any:
    """Hash blocks of complete rows until each half is one word. hash_rows: [rows, WIDTH] → both words of every row."""
    import torch

    rows: list[list[Any]] = [[], []]
    for block in blocks:
        for half_sums, sums in zip(rows, hash_rows(block.view(-1, WIDTH))):
            half_sums.append(sums)
    reduced = []
    for half in (0, 1):
        words, odd = torch.cat(rows[half]), _multiplier_tensor(half, device)
        while len(words) > 1:
            table = torch.cat([words, words.new_zeros(-len(words) % WIDTH)]).view(-1, WIDTH)
            words = (((table >> 32 & LOW) ^ table) * odd).sum(1)
        reduced.append(words)
    return torch.cat(reduced)


def _torch_row_hasher(size: int, device: Any) -> Callable[[Any], Sequence[Any]]:
    """Return a function that hashes the rows of tables of at most `size` words with torch operations."""
    import torch

    odd = [_multiplier_tensor(half, device) for half in (0, 1)]
    mixed, product = (torch.empty(size // WIDTH, WIDTH, dtype=torch.int64, device=device) for _ in range(2))

    def hash_rows(table: Any) -> Sequence[Any]:
        number = len(table)
        torch.bitwise_right_shift(table, 32, out=mixed[:number])
        mixed[:number].bitwise_and_(LOW).bitwise_xor_(table)
        return [torch.mul(mixed[:number], each, out=product[:number]).sum(1) for each in odd]

    return hash_rows


@functools.cache
def row_hash_kernel(device: Any) -> Callable[[Any], Sequence[Any]] | None:
    """Return a kernel that hashes rows in one pass over memory; None if none agrees with torch on a test table."""
    import torch

    if device.type != "cuda":
        return None
    odd = [_multiplier_tensor(half, device) for half in (0, 1)]
    table = torch.arange(3 * WIDTH, device=device).view(3, WIDTH) * -7046029254386353131
    try:
        from .digest_kernel import hash_rows as kernel_rows

        hash_rows = functools.partial(kernel_rows, odd=odd)
        same = map(torch.equal, hash_rows(table), _torch_row_hasher(3 * WIDTH, device)(table))
        return hash_rows if all(same) else None
    except Exception:  # no Triton, no compiler for it, a GPU that it does not know
        return None


@functools.cache
def _multiplier_tensor(half: int, device: Any) -> Any:
    import torch

    signed = [number - (1 << 64) if number >> 63 else number for number in multipliers(half)]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def _iterate_blocks(tensor: Any, size: int, longest: int) -> Iterator[Any]:
    """Yield a tensor's bytes as words of complete rows, the last row padded with zeros.

    A block has at most `size` words; aligned memory is not copied, and its blocks have at most `longest` words. The caller must
    read a block before it requests the next one, which reuses the memory.
    """
    import torch

    block, filled, row = None, 0, 8 * WIDTH
    for piece in _iterate_bytes(tensor, 8 * size):
        at = 0
        while at < len(piece):
            part = piece[at:]
            if not filled and len(part) >= row and not (part.data_ptr() % 8 or part.storage_offset() % 8):
                take = min(8 * longest, len(part) // row * row)
                yield part[:take].view(torch.int64)
            else:
                block = torch.empty(size, dtype=torch.int64, device=tensor.device) if block is None else block
                take = min(8 * size - filled, len(part))
                block.view(torch.uint8)[filled : filled + take].copy_(part[:take])
                filled += take
                if filled == 8 * size:
                    yield block
                    filled = 0
            at += take
    if filled and block is not None:
        end = -(-filled // row) * WIDTH
        block.view(torch.uint8)[filled : 8 * end].zero_()
        yield block[:end]


def _iterate_bytes(tensor: Any, size: int) -> Iterator[Any]:
    """Yield the bytes of a tensor in row-major order; if memory has another order, copy at most `size` at a time."""
    import torch

    nbytes = tensor.numel() * tensor.element_size()
    if tensor.is_contiguous() or nbytes <= size:
        yield tensor.contiguous().view(-1).view(torch.uint8)
        return
    step = max(1, size // (nbytes // len(tensor)))
    for at in range(0, len(tensor), step):
        yield from _iterate_bytes(tensor[at] if step == 1 else tensor[at : at + step], size)
