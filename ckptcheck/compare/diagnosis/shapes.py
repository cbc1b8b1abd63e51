"""Explains tensors of different shapes or dtypes: a shard instead of the whole, padding, a reshape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.inputs import TensorBits, tp_sizes
from ckptcheck.compare.diagnosis.matrix_view import matrices_equal
from ckptcheck.compare.diagnosis.tensor_name import parse_tensor_name
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.compare.matching.cast import ROUNDED, encode
from ckptcheck.text.formatting import format_shape
from ckptcheck.values.dtypes import decode


def explain_shape(expected: TensorBits, actual: TensorBits, part: str) -> Cause:
    """Find how two tensors of different shapes, or of unrelated dtypes, are related."""
    difference = _describe_difference(expected, actual)
    if expected.dtype != actual.dtype and not {expected.dtype, actual.dtype} <= set(ROUNDED):
        text = f"is {actual.dtype}, not {expected.dtype}"
        return Cause("dtype", text if expected.shape == actual.shape else f"{text}, and {difference}")
    was, now = _cast_bits(expected, actual.dtype).matrix, actual.matrix
    if expected.shape == actual.shape:
        return Cause("dtype", "no elements to compare")
    if was.size == now.size:
        if (
            actual.patterns.ndim == 2
            and expected.patterns.ndim == 2
            and matrices_equal(np.ascontiguousarray(was.T), now)
        ):
            return Cause("transposed", "transposed", group="shape")
        if (ranks := _find_wrong_axis(was, now)) is not None:
            text = f"{difference}: the shards of {ranks} tensor-parallel ranks are concatenated along the wrong axis"
            return Cause("tp-axis", text)
        if was.size and np.array_equal(was.ravel(), now.ravel()):
            return Cause("shape", f"{difference}, with the same numbers in the same order")
    if was.shape[1] == now.shape[1]:
        least = min(len(was), len(now))
        if least and matrices_equal(was[:least], now[:least]):
            return _explain_row_count(len(was), len(now), part)
    if (shard := _find_shard(was, now)) is not None:
        return Cause("tp-shard", f"{difference}: the shard of tensor-parallel rank {shard[0]} of {shard[1]} alone")
    return Cause("shape", difference, "unknown")


def describe_shape_cause(expected: TensorBits, actual: TensorBits, name: str) -> str:
    """Describe how a tensor is related to its counterpart of another shape; "" if that is unknown."""
    cause = explain_shape(expected, actual, parse_tensor_name(name).part)
    if cause.confidence == "unknown":
        return ""
    difference = _describe_difference(expected, actual)
    return cause.text.removeprefix(f"{difference}: ").removeprefix(f"{difference}, and ")


def _describe_difference(expected: TensorBits, actual: TensorBits) -> str:
    return f"has shape {format_shape(actual.shape)}, not {format_shape(expected.shape)}"


def _explain_row_count(was: int, now: int, part: str) -> Cause:
    noun = "vocabulary-padding" if part == "vocabulary" else "rows"
    if now > was:
        code = noun if part == "vocabulary" else "rows-added"
        meant = "padding of the vocabulary was not cut off" if part == "vocabulary" else "rows were added at the end"
        return Cause(code, f"{meant}: {now:,} rows instead of {was:,}, the first {was:,} are right")
    code = noun if part == "vocabulary" else "rows-missing"
    return Cause(code, f"rows at the end were cut off: {now:,} instead of {was:,}, and those are right")


def _find_wrong_axis(was: NDArray[Any], now: NDArray[Any]) -> int | None:
    """Return the number of ranks whose shards, cut along one axis, were concatenated along the other; None if none fits."""
    for ranks in tp_sizes(was.size):
        for ours, theirs in ((was, now), (was.T, now.T)):
            if ours.shape[1] % ranks == 0 and theirs.shape == (ours.shape[0] * ranks, ours.shape[1] // ranks):
                blocks = np.split(ours, ranks, axis=1)
                if all(np.array_equal(a, b) for a, b in zip(blocks, np.split(theirs, ranks), strict=True)):
                    return ranks
    return None


def _find_shard(was: NDArray[Any], now: NDArray[Any]) -> tuple[int, int] | None:
    """Return the rank whose shard this is, and the number of ranks; None if it is no shard."""
    for axis in (0, 1):
        if was.shape[1 - axis] != now.shape[1 - axis] or not now.size:
            continue
        for ranks in tp_sizes(was.shape[axis]):
            if now.shape[axis] * ranks == was.shape[axis]:
                blocks = np.split(was, ranks, axis=axis)
                matching_ranks = [rank for rank, block in enumerate(blocks) if np.array_equal(block, now)]
                if matching_ranks:
                    return matching_ranks[0], ranks
    return None


def _cast_bits(bits: TensorBits, dtype: str) -> TensorBits:
    if bits.dtype == dtype or not bits.patterns.size:
        return bits
    return TensorBits(dtype, encode(dtype, decode(bits.dtype, bits.patterns)).reshape(bits.shape))
