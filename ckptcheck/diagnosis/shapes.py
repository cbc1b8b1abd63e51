"""Tensors of different shapes or dtypes: a shard for the whole, padding, the same numbers in another shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.geometry import Geometry
from ckptcheck.diagnosis.place import place_of
from ckptcheck.diagnosis.rounding import ROUNDED, encode
from ckptcheck.diagnosis.verdict import Cause
from ckptcheck.diagnosis.view import same
from ckptcheck.phrase import shape
from ckptcheck.values.dtypes import decode


def misshapen(expected: Bits, actual: Bits, part: str, geometry: Geometry) -> Cause:
    """Say how two tensors of different shapes, or of dtypes that have nothing in common, are related."""
    differ = _differ(expected, actual)
    if expected.dtype != actual.dtype and not {expected.dtype, actual.dtype} <= set(ROUNDED):
        text = f"is {actual.dtype}, not {expected.dtype}"
        return Cause("dtype", text if expected.shape == actual.shape else f"{text}, and {differ}")
    was, now = _as(expected, actual.dtype).matrix, actual.matrix
    if expected.shape == actual.shape:
        return Cause("dtype", "no elements to compare")
    if was.size == now.size:
        if actual.patterns.ndim == 2 and expected.patterns.ndim == 2 and same(np.ascontiguousarray(was.T), now):
            return Cause("transposed", "transposed", group="shape")
        if (ranks := _other_axis(was, now, geometry)) is not None:
            text = f"{differ}: the shards of {ranks} tensor-parallel ranks are concatenated along the wrong axis"
            return Cause("tp-axis", text)
        if was.size and np.array_equal(was.ravel(), now.ravel()):
            return Cause("shape", f"{differ}, and the same numbers in the same order")
    if was.shape[1] == now.shape[1]:
        least = min(len(was), len(now))
        if least and same(was[:least], now[:least]):
            return _rows(len(was), len(now), part)
    if (shard := _shard(was, now, geometry)) is not None:
        return Cause("tp-shard", f"{differ}: the shard of tensor-parallel rank {shard[0]} of {shard[1]} alone")
    return Cause("shape", differ, "unknown")


def shape_cause(expected: Bits, actual: Bits, name: str, geometry: Geometry) -> str:
    """Say how a tensor of this name is related to its counterpart of another shape; "" where that is not known."""
    cause = misshapen(expected, actual, place_of(name).part, geometry)
    if cause.confidence == "unknown":
        return ""
    differ = _differ(expected, actual)
    return cause.text.removeprefix(f"{differ}: ").removeprefix(f"{differ}, and ")


def _differ(expected: Bits, actual: Bits) -> str:
    return f"has shape {shape(actual.shape)}, not {shape(expected.shape)}"


def _rows(was: int, now: int, part: str) -> Cause:
    noun = "vocabulary-padding" if part == "vocabulary" else "rows"
    if now > was:
        code = noun if part == "vocabulary" else "rows-added"
        meant = "padding of the vocabulary was not cut off" if part == "vocabulary" else "rows were added at the end"
        return Cause(code, f"{meant}: {now:,} rows instead of {was:,}, the first {was:,} are right")
    code = noun if part == "vocabulary" else "rows-missing"
    return Cause(code, f"rows at the end were cut off: {now:,} instead of {was:,}, and those are right")


def _other_axis(was: NDArray[Any], now: NDArray[Any], geometry: Geometry) -> int | None:
    """How many ranks' shards, cut along one axis, were put together along the other."""
    for ranks in geometry.ranks(was.size):
        for ours, theirs in ((was, now), (was.T, now.T)):
            if ours.shape[1] % ranks == 0 and theirs.shape == (ours.shape[0] * ranks, ours.shape[1] // ranks):
                blocks = np.split(ours, ranks, axis=1)
                if all(np.array_equal(a, b) for a, b in zip(blocks, np.split(theirs, ranks), strict=True)):
                    return ranks
    return None


def _shard(was: NDArray[Any], now: NDArray[Any], geometry: Geometry) -> tuple[int, int] | None:
    """Which rank's shard it is, and of how many."""
    for axis in (0, 1):
        if was.shape[1 - axis] != now.shape[1 - axis] or not now.size:
            continue
        for ranks in geometry.ranks(was.shape[axis]):
            if now.shape[axis] * ranks == was.shape[axis]:
                blocks = np.split(was, ranks, axis=axis)
                found = [rank for rank, block in enumerate(blocks) if np.array_equal(block, now)]
                if found:
                    return found[0], ranks
    return None


def _as(bits: Bits, dtype: str) -> Bits:
    if bits.dtype == dtype or not bits.patterns.size:
        return bits
    return Bits(dtype, encode(dtype, decode(bits.dtype, bits.patterns)).reshape(bits.shape))
