"""Rearrangements that converters apply to a tensor: QKV per group, gate and up, rope, transposition.

Sources: Megatron-LM's `linear_qkv` (per KV group its queries, key, value) and `linear_fc1` ([gate; up] on each
tensor-parallel rank); transformers' `permute` in convert_llama_weights_to_hf.py (rope's pairs to halves).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ckptcheck.diagnosis.view import Arrangement, Index

if TYPE_CHECKING:
    from ckptcheck.diagnosis.unit import Unit


def by_group(sizes: tuple[int, ...], groups: int) -> Index:
    """Order the rows of stacked parts by group: for each group its share of the first part, of the second, and so on.

    >>> by_group((4, 2), 2).tolist()
    [0, 1, 4, 2, 3, 5]
    """
    starts = np.cumsum((0, *sizes[:-1]))
    shares = [
        start + np.arange(size, dtype=np.int64).reshape(groups, -1) for start, size in zip(starts, sizes, strict=True)
    ]
    return np.concatenate(shares, axis=1).reshape(-1).astype(np.int64)


def fused(unit: Unit) -> Iterator[Arrangement]:
    """What can be wrong with how the parts of a fused tensor lie in each other."""
    sizes = unit.sizes
    if len(sizes) == 3:
        groups = unit.sides.geometry.groups(sizes[0], sizes[1])
        for number in groups:
            yield from _both(sizes, number, "qkv-interleave", *_said(unit.interleaved))
        for ranks in unit.sides.geometry.ranks(sizes[1]):
            if sizes[0] % ranks == 0 and ranks not in groups:
                yield from _both(sizes, ranks, "tp-concatenated", *_plain("Q, K and V", ranks))
    if len(sizes) == 2:
        half = sizes[0]
        rows = np.concatenate([np.arange(half, 2 * half), np.arange(half)]).astype(np.int64)
        yield Arrangement("gate-up-swapped", "gate and up are swapped", rows=rows)
        for ranks in unit.sides.geometry.ranks(half):
            yield from _both(sizes, ranks, "tp-concatenated", *_plain("gate and up", ranks))
        yield from _both(
            sizes,
            half,
            "gate-up-interleaved",
            "rows of gate and up alternate; they are expected as two halves",
            "gate and up were taken apart as if their rows alternated",
        )


def _said(interleaved: bool) -> tuple[str, str]:
    if interleaved:  # Megatron's own tensor: what is expected is interleaved
        return (
            "Q, K and V are interleaved per KV group twice",
            "Q, K and V are stacked plainly; they are expected interleaved per KV group",
        )
    return (
        "Q, K and V are still interleaved per KV group (Megatron's linear_qkv cut as if it were [Q; K; V])",
        "the interleave of Q, K and V per KV group was undone twice",
    )


def _plain(parts: str, ranks: int) -> tuple[str, str]:
    return (
        f"{parts} of {ranks} tensor-parallel ranks are concatenated plainly, rank after rank",
        f"{parts} were taken apart as if {ranks} tensor-parallel ranks lay behind each other",
    )


def _both(sizes: tuple[int, ...], groups: int, code: str, forward: str, back: str) -> Iterator[Arrangement]:
    """An order and its reverse; neither where the order changes nothing."""
    rows = by_group(sizes, groups)
    if np.array_equal(rows, np.arange(len(rows))):
        return
    yield Arrangement(code, forward, rows=rows)
    reverse = np.argsort(rows)
    if not np.array_equal(reverse, rows):
        yield Arrangement(code, back, rows=reverse)


def alone(unit: Unit) -> Iterator[Arrangement]:
    """What can be wrong with how one matrix lies: transposed, or rope's halves and pairs confused in Q and K."""
    rows, columns = unit.actual.shape
    if not unit.flat and rows > 1 and columns > 1:
        yield Arrangement("transposed", "transposed", turned=True)
    if unit.part in ("q", "k"):
        for size in unit.sides.geometry.head_dims(rows):
            for turned in (size, size // 2, size // 4):
                if turned >= 4 and turned % 2 == 0:
                    yield from _rope(rows, size, turned)


def _rope(rows: int, head_dim: int, rotary: int) -> Iterator[Arrangement]:
    pairs = np.arange(rotary, dtype=np.int64).reshape(2, -1).T.reshape(-1)  # 0, half, 1, half + 1, ...
    part = "" if rotary == head_dim else f" (of the first {rotary} of {head_dim} rows of a head)"
    for order, text in (
        (pairs, f"rope's halves are laid out as interleaved pairs{part}"),
        (np.argsort(pairs), f"rope's interleaved pairs are laid out as halves{part}"),
    ):
        head = np.concatenate([order, np.arange(rotary, head_dim)])
        yield Arrangement(
            "rope-permuted",
            text,
            rows=(np.arange(0, rows, head_dim)[:, None] + head[None]).reshape(-1).astype(np.int64),
        )
