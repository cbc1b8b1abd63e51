"""Computes the checksum of a flush as verl does, and compares it with the one that was sent.

verl takes `torch.hash_tensor` of the positions and of the values, shifts the second by one bit, and joins both by an exclusive or
(verl/checkpoint_engine/delta_sync/encode.py, 1dda039b). `torch.hash_tensor` is the exclusive or of all elements, each widened to 64
bits: an integer with its sign, a float as a double (torch 2.13, measured). The positions are bytes, so their part has eight bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.checkpoint.deltas.delta import Delta, Flush, Span

STEP = 1 << 22
"""Bytes that are widened at a time."""
KINDS = {
    "U8": "<u1",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": "<u2",
}


def list_torn_flushes(delta: Delta) -> list[str]:
    """Return the files whose checksum differs from the one sent. Files in a dtype that cannot be widened here are left out."""
    torn = []
    for flush in delta.flushes:
        found = compute_flush_checksum(delta, flush)
        if found is not None and found != flush.checksum:
            torn.append(flush.values.file)
    return torn


def compute_flush_checksum(delta: Delta, flush: Flush) -> int | None:
    """Return verl's checksum of a flush; None where its dtype is unknown here, or its file cannot be read to its end."""
    if flush.dtype not in KINDS:
        return None
    try:
        positions = _hash_span(delta, flush.positions, "U8") if flush.positions is not None else 0
        values = _hash_span(delta, flush.values, flush.dtype)
    except OSError:
        return None
    return positions ^ (values << 1)


def _hash_span(delta: Delta, span: Span, dtype: str) -> int:
    kind, total = np.dtype(KINDS[dtype]), 0
    for at in range(0, span.nbytes, STEP):
        raw = delta.source.read(span.file, span.begin + at, min(STEP, span.nbytes - at))
        values = np.frombuffer(raw[: len(raw) - len(raw) % kind.itemsize], kind)
        total ^= int(np.bitwise_xor.reduce(_widen(values, dtype))) if values.size else 0
    return total


def _widen(values: NDArray[Any], dtype: str) -> NDArray[np.uint64]:
    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            return values.astype(np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64)
