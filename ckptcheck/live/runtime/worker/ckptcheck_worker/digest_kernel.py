"""A Triton kernel that hashes the rows of a table in one pass over a GPU's memory; digest.py defines the hash.

torch operations read and write the words a dozen times. Where Triton or its compiler is missing, digest.py uses torch.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

BLOCK = 1024
"""Words that one program holds in its registers."""


@triton.jit  # type: ignore[untyped-decorator]
def _hash(words, odd0, odd1, sums, number, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    total0 = tl.zeros([BLOCK], dtype=tl.int64)
    total1 = tl.zeros([BLOCK], dtype=tl.int64)
    for begin in range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        word = tl.load(words + row * WIDTH + at)
        mixed = word ^ ((word >> 32) & 0xFFFFFFFF)
        total0 += mixed * tl.load(odd0 + at)
        total1 += mixed * tl.load(odd1 + at)
    tl.store(sums + row, tl.sum(total0, axis=0))
    tl.store(sums + number + row, tl.sum(total1, axis=0))


def hash_rows(table: Any, odd: list[Any]) -> list[Any]:
    """Return both words of every row. table: [rows, width] int64, contiguous; odd: [width] int64, twice."""
    import torch

    sums = torch.empty(2, len(table), dtype=torch.int64, device=table.device)
    with torch.cuda.device_of(table):
        _hash[(len(table),)](table, odd[0], odd[1], sums, len(table), WIDTH=table.shape[1], BLOCK=BLOCK)
    return [sums[0], sums[1]]
