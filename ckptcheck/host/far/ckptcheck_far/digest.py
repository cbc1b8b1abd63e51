"""A 128-bit digest of a tensor's bytes, computed on the device where the tensor lies, with ordinary torch operations.

The bytes, in row-major order and filled up with zeros, are little-endian words of 64 bits. Rows of WIDTH words become one
word each: every word is mixed (its high half is xored into its low half, so that a flip of the highest bit is not lost
in a sum modulo 2^64), multiplied by an odd number of its place, and the products are summed; the words of the rows are
treated in the same way until one is left (a tree of multilinear hashes, Lemire and Kaser 2014, arXiv:1202.4961). Two sets
of odd numbers give two such words, and the number of bytes is added at the end. Every step is a bijection of any one word,
so a change within one word always changes both halves. It finds accidents, not forgeries: the numbers are known.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WIDTH = 4096
"""Words of one row. Part of the definition: another width gives other digests."""
ROWS = {"cpu": 7, "": 2048}
"""Rows that are hashed at once, by kind of device: what keeps a GPU busy, and on CPU what fits the cache and is below the
32,768 elements from which torch uses several threads: waiting for each other costs them more than they gain, the more so
on a busy machine."""
LONGEST = WIDTH << 15
"""Words that are hashed at once on a GPU where nothing has to be copied: a gigabyte."""
MASK = (1 << 64) - 1
LOW = (1 << 32) - 1
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""Those that this process was given. Read when it starts: engines pin their threads, and new ones inherit that."""
SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""The first digits of pi: numbers with nothing up their sleeve."""


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


def spell(words: tuple[int, ...], nbytes: int) -> str:
    """Return 32 hexadecimal digits for the two words that are left of so many bytes."""
    return "".join(f"{(words[half] + nbytes * multipliers(half)[0]) & MASK:016x}" for half in (0, 1))


def digest(tensor: Any) -> str:
    """Return the digest of a torch tensor of any shape, strides and dtype, in 32 hexadecimal digits.

    Needs three blocks of memory beside the tensor. Raises ValueError for a tensor without memory (meta).
    """
    return _spelled([tensor])[0]


def digests(tensors: Sequence[Any]) -> list[str]:
    """Return the digests of many tensors: one after the other on a device, on the CPU as many at once as there are CPUs."""
    if len(CPUS) < 2 or len(tensors) < 2 or any(tensor.device.type != "cpu" for tensor in tensors):
        return _spelled(tensors)
    with ThreadPoolExecutor(len(CPUS), initializer=os.sched_setaffinity, initargs=(0, CPUS)) as pool:
        return list(pool.map(digest, tensors))


def _spelled(tensors: Sequence[Any]) -> list[str]:
    """Digest tensors; a device is waited for once, at the end."""
    import torch

    with torch.inference_mode():
        words = [_words(tensor.detach()) for tensor in tensors]
        told: dict[Any, Iterator[list[int]]] = {}
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            told[device] = iter(torch.stack([own for own in words if own.device == device]).tolist())
    return [
        spell((one & MASK, other & MASK), tensor.numel() * tensor.element_size())
        for tensor in tensors
        for one, other in (next(told[tensor.device]),)
    ]


def _words(tensor: Any) -> Any:
    """Return the two words that are left of a tensor, on its device."""
    import torch

    if tensor.device.type == "meta":
        raise ValueError("a tensor on the meta device holds no numbers")
    nbytes = tensor.numel() * tensor.element_size()
    if not nbytes:
        return torch.zeros(2, dtype=torch.int64, device=tensor.device)
    size = WIDTH * min(ROWS.get(tensor.device.type, ROWS[""]), -(-nbytes // (8 * WIDTH)))
    hashed = kernel(tensor.device)
    if hashed is None:
        return _tree(_blocks(tensor, size, size), _by_torch(size, tensor.device), tensor.device)
    return _tree(_blocks(tensor, size, LONGEST), hashed, tensor.device)


def _tree(blocks: Iterator[Any], hashed: Callable[[Any], Sequence[Any]], device: Any) -> Any:
    """Hash blocks of whole rows until one word is left of each half. hashed: [rows, WIDTH] → both words of every row."""
    import torch

    rows: list[list[Any]] = [[], []]
    for block in blocks:
        for found, sums in zip(rows, hashed(block.view(-1, WIDTH))):
            found.append(sums)
    left = []
    for half in (0, 1):
        words, odd = torch.cat(rows[half]), _odd(half, device)
        while len(words) > 1:
            table = torch.cat([words, words.new_zeros(-len(words) % WIDTH)]).view(-1, WIDTH)
            words = (((table >> 32 & LOW) ^ table) * odd).sum(1)
        left.append(words)
    return torch.cat(left)


def _by_torch(size: int, device: Any) -> Callable[[Any], Sequence[Any]]:
    """Return what hashes the rows of tables of at most `size` words by torch's own operations."""
    import torch

    odd = [_odd(half, device) for half in (0, 1)]
    mixed, product = (torch.empty(size // WIDTH, WIDTH, dtype=torch.int64, device=device) for _ in range(2))

    def hashed(table: Any) -> Sequence[Any]:
        number = len(table)
        torch.bitwise_right_shift(table, 32, out=mixed[:number])
        mixed[:number].bitwise_and_(LOW).bitwise_xor_(table)
        return [torch.mul(mixed[:number], each, out=product[:number]).sum(1) for each in odd]

    return hashed


@functools.cache
def kernel(device: Any) -> Callable[[Any], Sequence[Any]] | None:
    """Return what hashes rows in one pass over memory, None where there is none that computes what torch does: it is tried."""
    import torch

    if device.type != "cuda":
        return None
    odd = [_odd(half, device) for half in (0, 1)]
    table = torch.arange(3 * WIDTH, device=device).view(3, WIDTH) * -7046029254386353131
    try:
        from .digest_kernel import rows

        hashed = functools.partial(rows, odd=odd)
        same = map(torch.equal, hashed(table), _by_torch(3 * WIDTH, device)(table))
        return hashed if all(same) else None
    except Exception:  # no Triton, no compiler for it, a GPU that it does not know
        return None


@functools.cache
def _odd(half: int, device: Any) -> Any:
    import torch

    signed = [number - (1 << 64) if number >> 63 else number for number in multipliers(half)]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def _blocks(tensor: Any, size: int, longest: int) -> Iterator[Any]:
    """Yield a tensor's bytes as words of whole rows, the last row filled up with zeros: at most `size` words, `longest` of those
    that lie aligned in memory and are not copied. What is yielded is read before the next is asked for.
    """
    import torch

    block, filled, row = None, 0, 8 * WIDTH  # bytes
    for piece in _pieces(tensor, 8 * size):
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


def _pieces(tensor: Any, size: int) -> Iterator[Any]:
    """Yield the bytes of a tensor in row-major order, copied by at most `size` at once where they do not lie so."""
    import torch

    nbytes = tensor.numel() * tensor.element_size()
    if tensor.is_contiguous() or nbytes <= size:
        yield tensor.contiguous().view(-1).view(torch.uint8)
        return
    step = max(1, size // (nbytes // len(tensor)))
    for at in range(0, len(tensor), step):
        yield from _pieces(tensor[at] if step == 1 else tensor[at : at + step], size)
