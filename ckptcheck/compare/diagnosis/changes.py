"""Causes that change every element, or its place, in the same way.

Elements: rounding, sign, byte order, another dtype, an offset. Places, as converters rearrange them, or forget to: QKV interleave,
gate and up, rope, transposition, the order of ranks.

Sources: Megatron-LM's `linear_qkv` (per KV group its queries, key, value) and `linear_fc1` ([gate; up] on each
tensor-parallel rank); transformers' `permute` in convert_llama_weights_to_hf.py (rope's pairs to halves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.inputs import tp_sizes
from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import Change, MatrixView, map_elements, move_elements, order_by_group
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.compare.matching.cast import encode
from ckptcheck.values.dtypes import FORMATS, decode

ROUND_TRIPS = {
    "F64": ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F32": ("F16", "BF16", "F8_E4M3", "F8_E5M2"),
    "F16": ("BF16", "F8_E4M3", "F8_E5M2"),
    "BF16": ("F16", "F8_E4M3", "F8_E5M2"),
}
NORM_OFFSETS = {-1: "1 is missing (zero-centred norm: w instead of 1 + w)", 1: "1 was added twice"}
"""What was added to a norm → how a sentence says it."""
DTYPE_WORDS = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "fp8 (e4m3)", "F8_E5M2": "fp8 (e5m2)"}
MIN_ELEMENTS, MIN_WIDTH = 8, 4
"""Elements, and rows or columns, that a rank's shard has at least."""


def iterate_fused_rearrangements(pair: MatrixPair, *, permuted: bool = True) -> Iterator[Change]:
    """Yield what can be wrong with the order of the members of a fused tensor.

    permuted: also Q, K and V in another order. Beside a second cause, the order of ranks often explains the same.
    """
    sizes = pair.member_rows
    if len(sizes) == 3:
        yield from _order_blocks(sizes) if permuted else ()
        groups = pair.input.geometry.candidate_kv_heads(sizes[0], sizes[1])
        for number in groups:
            yield from _order_and_inverse(sizes, number, "qkv-interleave", *_qkv_texts(pair.is_interleaved))
        for ranks in tp_sizes(sizes[1]):
            if sizes[0] % ranks == 0 and ranks not in groups:
                yield from _order_and_inverse(
                    sizes, ranks, "tp-concatenated", *_concatenation_texts("Q, K and V", ranks)
                )
    if len(sizes) == 2:
        half = sizes[0]
        rows = np.concatenate([np.arange(half, 2 * half), np.arange(half)]).astype(np.int64)
        yield move_elements("gate-up-swapped", "gate and up are swapped", rows=rows)
        for ranks in tp_sizes(half):
            yield from _order_and_inverse(sizes, ranks, "tp-concatenated", *_concatenation_texts("gate and up", ranks))
        yield from _order_and_inverse(
            sizes,
            half,
            "gate-up-interleaved",
            "rows of gate and up alternate; they are expected as two halves",
            "gate and up were taken apart as if their rows alternated",
        )


def _order_blocks(sizes: tuple[int, ...]) -> Iterator[Change]:
    """Yield Q, K and V stacked in every wrong order."""
    ends = np.cumsum(sizes)
    blocks = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    for order in list(permutations(range(3)))[1:]:
        names = ", ".join("QKV"[number] for number in order)
        rows = np.concatenate([blocks[number] for number in order]).astype(np.int64)
        yield move_elements("qkv-permuted", f"Q, K and V are in the order {names}", rows=rows)


def _qkv_texts(interleaved: bool) -> tuple[str, str]:
    # In Megatron's own tensor the expected order is interleaved.
    if interleaved:
        return (
            "Q, K and V are interleaved per KV group twice",
            "Q, K and V are stacked plainly; they are expected interleaved per KV group",
        )
    return (
        "Q, K and V are still interleaved per KV group (Megatron's linear_qkv cut as if it were [Q; K; V])",
        "the interleave of Q, K and V per KV group was undone twice",
    )


def _concatenation_texts(parts: str, ranks: int) -> tuple[str, str]:
    return (
        f"{parts} of {ranks} tensor-parallel ranks are concatenated plainly, rank after rank",
        f"{parts} were taken apart as if {ranks} tensor-parallel ranks lay behind each other",
    )


def _order_and_inverse(sizes: tuple[int, ...], groups: int, code: str, forward: str, back: str) -> Iterator[Change]:
    """Yield an order and its inverse; nothing if the order changes nothing."""
    rows = order_by_group(sizes, groups)
    if np.array_equal(rows, np.arange(len(rows))):
        return
    yield move_elements(code, forward, rows=rows)
    reverse = np.argsort(rows)
    if not np.array_equal(reverse, rows):
        yield move_elements(code, back, rows=reverse)


def iterate_matrix_rearrangements(pair: MatrixPair) -> Iterator[Change]:
    """Yield what can be wrong with the layout of one matrix: transposed, or rope's halves and pairs confused in Q and K."""
    rows, columns = pair.actual.shape
    if not pair.is_vector and rows > 1 and columns > 1:
        yield move_elements("transposed", "transposed", transposed=True)
    if pair.part in ("q", "k"):
        for size in pair.input.geometry.candidate_head_dims(rows):
            for rotary_rows in (size, size // 2, size // 4):
                if rotary_rows >= 4 and rotary_rows % 2 == 0:
                    yield from _rope(rows, size, rotary_rows)


def _rope(rows: int, head_dim: int, rotary: int) -> Iterator[Change]:
    # 0, half, 1, half + 1, ...
    pairs = np.arange(rotary, dtype=np.int64).reshape(2, -1).T.reshape(-1)
    part = "" if rotary == head_dim else f" (of the first {rotary} of {head_dim} rows of a head)"
    for order, text in (
        (pairs, f"rope's halves are laid out as interleaved pairs{part}"),
        (np.argsort(pairs), f"rope's interleaved pairs are laid out as halves{part}"),
    ):
        head = np.concatenate([order, np.arange(rotary, head_dim)])
        yield move_elements(
            "rope-permuted",
            text,
            rows=(np.arange(0, rows, head_dim)[:, None] + head[None]).reshape(-1).astype(np.int64),
        )


def propose_shard_orders(pair: MatrixPair, view: MatrixView, actual: NDArray[Any]) -> Iterator[Change]:
    """Yield rearrangements in which each block is some block of the source: permuted ranks, a rank's shard twice."""
    for axis in (0, 1):
        if axis == 1 and actual.shape[1] == 1:
            continue
        sizes = [
            ranks
            for ranks in tp_sizes(actual.shape[axis])
            if actual.size // ranks >= MIN_ELEMENTS and actual.shape[axis] // ranks >= MIN_WIDTH
        ]
        if not sizes or _match_blocks(view, actual, axis, sizes[-1]) is None:
            # If large blocks moved, small ones did too.
            continue
        for ranks in sizes:
            mapping = _match_blocks(view, actual, axis, ranks)
            if mapping is None or mapping == list(range(ranks)):
                continue
            width = actual.shape[axis] // ranks
            order = (np.array(mapping)[:, None] * width + np.arange(width)).reshape(-1).astype(np.int64)
            listed = ", ".join(map(str, mapping[:8])) + (", …" if ranks > 8 else "")
            if len(set(mapping)) == ranks:
                code, text = "tp-order", f"the shards of {ranks} tensor-parallel ranks are in the order {listed}"
            else:
                code = "tp-duplicated"
                text = f"shards of {ranks} tensor-parallel ranks are there more than once (ranks {listed})"
            yield move_elements(code, text, rows=None if axis else order, columns=order if axis else None)


def _match_blocks(view: MatrixView, actual: NDArray[Any], axis: int, ranks: int) -> list[int] | None:
    """Return the source block of each block, judged by a few elements; a block that may be itself is itself. None if unknown."""
    width, across = actual.shape[axis] // ranks, actual.shape[1 - axis]
    inside = np.unique(np.linspace(0, width - 1, 8).astype(np.int64))
    over = np.unique(np.linspace(0, across - 1, 8).astype(np.int64))
    along = (np.arange(ranks)[:, None, None] * width + inside[None, :, None]).astype(np.int64)
    rows, columns = (along, over[None, None]) if axis == 0 else (over[None, None], along)
    was = view.pick(rows, columns).reshape(ranks, -1)
    now = actual[rows, columns].reshape(ranks, -1)
    alike = (now[:, None] == was[None]).all(axis=2)
    if not alike.any(axis=1).all():
        return None
    return [number if alike[number, number] else int(alike[number].argmax()) for number in range(ranks)]


def elementwise_changes(pair: MatrixPair) -> Iterator[Change]:
    """Yield all changes that apply to the dtype of the pair."""
    dtype = pair.dtype
    if dtype not in FORMATS or not pair.is_float:
        return
    sign = np.array(FORMATS[dtype].sign, FORMATS[dtype].unsigned)
    yield map_elements("sign", "the sign is flipped", lambda bits: bits ^ sign)
    if FORMATS[dtype].bits > 8:
        yield map_elements("byte-order", "the bytes of each element are in reverse order", lambda bits: bits.byteswap())
    for narrow in ROUND_TRIPS.get(dtype, ()):
        yield map_elements("round-trip", f"rounded to {DTYPE_WORDS[narrow]} and back", _round_trip(dtype, narrow))
    if dtype == "F32":
        upper_half = np.uint32(0xFFFF0000)
        yield map_elements("round-trip", "cut to bf16 (not rounded) and back", lambda bits: bits & upper_half)
    other = {"F16": "BF16", "BF16": "F16", "F8_E4M3": "F8_E5M2", "F8_E5M2": "F8_E4M3"}.get(dtype)
    if other is not None:
        yield map_elements(
            "misread", f"the bits are those of {DTYPE_WORDS[other]}, read as {DTYPE_WORDS[dtype]}",
            lambda bits: encode(other, decode(dtype, bits)),
        )  # fmt: skip
    if pair.part == "norm":
        for step, text in NORM_OFFSETS.items():
            yield map_elements("norm-offset", text, _add_offset(dtype, step), "rounded")


def _round_trip(dtype: str, narrow: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda bits: encode(dtype, decode(narrow, encode(narrow, decode(dtype, bits))))


def _add_offset(dtype: str, step: int) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda bits: encode(dtype, decode(dtype, bits) + np.float32(step))


def find_norm_offset(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find a zero-centred norm whose 1 is missing or added twice: adding it back to the actual norm gives the expected one."""
    step = 1 if np.median(decode(dtype, actual)) < np.median(decode(dtype, expected)) else -1
    with np.errstate(invalid="ignore"):
        predicted = _add_offset(dtype, step)(actual)
    return Cause("norm-offset", NORM_OFFSETS[-step], "rounded") if np.array_equal(predicted, expected) else None
