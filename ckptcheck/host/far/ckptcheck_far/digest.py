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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

WIDTH = 4096
"""Words of one row. Part of the definition: another width gives other digests."""
ROWS = {"cpu": 7, "": 2048}
"""Rows that are hashed at once, by kind of device: what keeps a GPU busy, and on CPU what fits the cache and is below the
32,768 elements from which torch uses several threads: waiting for each other costs them more than they gain, the more so
on a busy machine."""
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
    import torch

    if tensor.device.type == "meta":
        raise ValueError("a tensor on the meta device holds no numbers")
    tensor = tensor.detach()
    nbytes = tensor.numel() * tensor.element_size()
    if not nbytes:
        return spell((0, 0), 0)
    with torch.inference_mode():
        size = WIDTH * min(ROWS.get(tensor.device.type, ROWS[""]), -(-nbytes // (8 * WIDTH)))
        words = tuple(_tree(_blocks(tensor, size), size, tensor.device))
    return spell(words, nbytes)


def digests(tensors: Sequence[Any]) -> list[str]:
    """Return the digests of many tensors: one after the other on a device, on the CPU as many at once as there are CPUs."""
    if len(CPUS) < 2 or len(tensors) < 2 or any(tensor.device.type != "cpu" for tensor in tensors):
        return [digest(tensor) for tensor in tensors]
    with ThreadPoolExecutor(len(CPUS), initializer=os.sched_setaffinity, initargs=(0, CPUS)) as pool:
        return list(pool.map(digest, tensors))


def _tree(blocks: Iterator[Any], size: int, device: Any) -> Iterator[int]:
    """Hash blocks of whole rows, of at most `size` words, until one word is left of each half."""
    import torch

    odd = [_odd(half, device) for half in (0, 1)]
    mixed, product = (torch.empty(size // WIDTH, WIDTH, dtype=torch.int64, device=device) for _ in range(2))
    rows: list[list[Any]] = [[], []]
    for block in blocks:
        table = block.view(-1, WIDTH)
        number = len(table)
        torch.bitwise_right_shift(table, 32, out=mixed[:number])
        mixed[:number].bitwise_and_(LOW).bitwise_xor_(table)
        for half in (0, 1):
            torch.mul(mixed[:number], odd[half], out=product[:number])
            rows[half].append(product[:number].sum(1))
    for half in (0, 1):
        words = torch.cat(rows[half])
        while len(words) > 1:
            table = torch.cat([words, words.new_zeros(-len(words) % WIDTH)]).view(-1, WIDTH)
            words = (((table >> 32 & LOW) ^ table) * odd[half]).sum(1)
        yield int(words[0]) & MASK


@functools.cache
def _odd(half: int, device: Any) -> Any:
    import torch

    signed = [number - (1 << 64) if number >> 63 else number for number in multipliers(half)]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def _blocks(tensor: Any, size: int) -> Iterator[Any]:
    """Yield a tensor's bytes as at most `size` words of whole rows, the last row filled up with zeros.

    Where they lie aligned in memory they are not copied; what is yielded is read before the next is asked for.
    """
    import torch

    block = torch.empty(size, dtype=torch.int64, device=tensor.device)
    filled = 0  # bytes
    for piece in _pieces(tensor, 8 * size):
        at = 0
        while at < len(piece):
            take = min(8 * size - filled, len(piece) - at)
            part = piece[at : at + take]
            if take == 8 * size and not (part.data_ptr() % 8 or part.storage_offset() % 8):
                yield part.view(torch.int64)
            else:
                block.view(torch.uint8)[filled : filled + take].copy_(part)
                filled += take
            at += take
            if filled == 8 * size:
                yield block
                filled = 0
    if filled:
        end = -(-filled // (8 * WIDTH)) * WIDTH
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
