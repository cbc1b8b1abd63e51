"""A Triton kernel that sums the blocks of a shard digest in one pass over a GPU's memory; shard_digest.py defines the sums.

Tests compare it with torch's operations in Triton's interpreter, and shard_digest.py does so before its first use on a
GPU. Its speed has not been measured yet.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

BLOCKS = 4
"""Blocks that one program sums."""


@triton.jit  # type: ignore[untyped-decorator]
def _sum(words, even0, odd0, even1, odd1, sums, number, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, WIDTH)
    low_factor0, high_factor0 = tl.load(even0 + at), tl.load(odd0 + at)
    low_factor1, high_factor1 = tl.load(even1 + at), tl.load(odd1 + at)
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    for block in range(first, tl.minimum(first + BLOCKS, number)):
        word = tl.load(words + block * WIDTH + at)
        low, high = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
        tl.store(sums + block, tl.sum(low * low_factor0 + high * high_factor0, axis=0))
        tl.store(sums + number + block, tl.sum(low * low_factor1 + high * high_factor1, axis=0))


def sum_blocks(words: Any, tables: list[tuple[Any, Any]]) -> Any:
    """Return [half, block]: the sums of blocks, unweighted.

    words: [block, word] int64, contiguous. tables: of each half, the factors of the low and of the high digits.
    """
    import torch

    sums = torch.empty(2, len(words), dtype=torch.int64, device=words.device)
    (even0, odd0), (even1, odd1) = tables
    with torch.cuda.device_of(words):
        grid = (-(-len(words) // BLOCKS),)
        _sum[grid](words, even0, odd0, even1, odd1, sums, len(words), WIDTH=words.shape[1], BLOCKS=BLOCKS)
    return sums
