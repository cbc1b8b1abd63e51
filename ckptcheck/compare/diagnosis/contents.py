"""Detects contents that need no comparison: zeros, NaN, a constant, memory that was never written; in a part of a tensor, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptcheck.compare.diagnosis.difference import DifferenceExtent, candidate_regions
from ckptcheck.compare.diagnosis.inputs import TensorBits
from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair
from ckptcheck.compare.diagnosis.matrix_view import CHUNK_ELEMENTS, row_ranges
from ckptcheck.compare.diagnosis.verdict import Cause
from ckptcheck.compare.matching.cast import ROUNDED, encode
from ckptcheck.values.detectors.bare_codes import recognise_codes
from ckptcheck.values.detectors.middle_pieces import PIECE
from ckptcheck.values.dtypes import FORMATS, decode

ABSURD_FACTOR = 1e6
"""Factor beyond the expected magnitudes, in both directions, that uninitialized memory reaches."""


def is_zero(dtype: str, patterns: NDArray[Any]) -> bool:
    """Whether all elements are 0 or -0."""
    form = FORMATS.get(dtype)
    keep = ~np.array(form.sign if form else 0, patterns.dtype)
    return not (patterns & keep).any()


def describe_uniform_content(dtype: str, patterns: NDArray[Any]) -> tuple[str, str] | None:
    """Return code and words for what all elements are; None if they vary."""
    if patterns.size == 0:
        return None
    first = patterns.reshape(-1)[:1]
    if _holds_for_all(patterns, lambda part: is_zero(dtype, part)):
        return "zero", "zero"
    if dtype in ROUNDED and _holds_for_all(patterns, lambda part: bool(np.isnan(decode(dtype, part)).all())):
        return "nan", "NaN"
    if patterns.size > 1 and _holds_for_all(patterns, lambda part: bool((part == first).all())):
        if dtype not in ROUNDED:
            return "constant", "the same bit pattern"
        return "constant", f"the constant {decode(dtype, first)[0]:g}"
    return None


def describe_unexpected_content(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> tuple[str, str] | None:
    """Return what all elements are; None if only the signs of zeros, or the bits of NaN, differ from the expected ones."""
    content = describe_uniform_content(dtype, actual)
    before = (
        describe_uniform_content(dtype, expected) if content is not None and content[0] in ("zero", "nan") else None
    )
    return content if before is None or content is None or before[0] != content[0] else None


def _holds_for_all(patterns: NDArray[Any], holds: Callable[[NDArray[Any]], bool]) -> bool:
    """Whether a predicate holds for all elements. A few are tested first, then chunk after chunk."""
    flat = patterns.reshape(-1)
    return holds(flat[:64]) and all(
        holds(flat[start : start + CHUNK_ELEMENTS]) for start in range(0, flat.size, CHUNK_ELEMENTS)
    )


def find_uniform_content(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find a tensor that is zero, NaN or constant throughout."""
    content = describe_unexpected_content(dtype, expected, actual)
    return Cause(content[0], f"every element is {content[1]}") if content is not None else None


def find_nan_holes(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find a tensor that is NaN in places and equal otherwise."""
    if dtype not in ROUNDED:
        return None
    number = 0
    for low, high in row_ranges((actual.shape[0], actual.shape[1])):
        differs = actual[low:high] != expected[low:high]
        if not np.isnan(decode(dtype, actual[low:high][differs])).all():
            return None
        number += int(np.count_nonzero(differs))
    text = f"elements are NaN that should be numbers ({number:,} of {actual.size:,} in one tensor)"
    return Cause("nan", text, group="some")


def find_uninitialized_memory(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find memory that was never written: absurdly large and absurdly small magnitudes, as random bits have.

    In random bits of F32 and BF16 every exponent is equally frequent. Nothing can reproduce them, so this is only likely.
    """
    if dtype not in ("F64", "F32", "BF16") or actual.size < 64:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(decode(dtype, actual.ravel()[: 1 << 20])).astype(np.float64)
        usual = np.abs(decode(dtype, expected.ravel()[: 1 << 20])).astype(np.float64)
    usual = usual[np.isfinite(usual) & (usual > 0)]
    if not usual.size:
        return None
    large = np.count_nonzero(~(size <= usual.max() * ABSURD_FACTOR)) / size.size
    small = np.count_nonzero((size > 0) & (size < usual.min() / ABSURD_FACTOR)) / size.size
    if min(large, small) < 0.02:
        return None
    return Cause("uninitialised", "looks like memory that was never written (absurd magnitudes)", "likely")


def find_bare_codes(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find the codes of a quantization without their scales. Scales can be chosen in many ways, so this is only likely."""
    if dtype not in ("F64", "F32", "BF16", "F16") or actual.size < PIECE:
        return None
    begin = (actual.size - PIECE) // 2
    forms = [
        recognise_codes(decode(dtype, part.ravel()[begin : begin + PIECE]), _find_largest(dtype, part))
        for part in (actual, expected)
    ]
    if forms[0] is None or forms[1] is not None:
        return None
    return Cause("codes", f"holds {forms[0].name} codes, not multiplied by their scales", "likely")


def _find_largest(dtype: str, patterns: NDArray[Any]) -> float:
    """Return the largest magnitude. A pattern without its sign is the larger, the larger its number."""
    return float(
        np.abs(decode(dtype, (patterns & ~np.array(FORMATS[dtype].sign, patterns.dtype)).max(keepdims=True))).max()
    )


def survives_cast(bits: TensorBits, dtype: str) -> bool:
    """Whether a cast to a dtype and back keeps every element."""
    return all(
        np.array_equal(encode(bits.dtype, decode(dtype, encode(dtype, decode(bits.dtype, part)))), part)
        for low, high in row_ranges((bits.matrix.shape[0], bits.matrix.shape[1]))
        for part in (np.ascontiguousarray(bits.matrix[low:high]),)
    )


def find_partial_write(pair: MatrixPair, extent: DifferenceExtent) -> Cause | None:
    """Name the region that a partial write left, and what it holds: zeros, NaN, a constant, or the previous version.

    None for anything else.
    """
    if extent.count < 2:
        return _find_bit_flip(pair, extent)
    previous = pair.read_sibling("previous", pair.key.parsed_name.layer, pair.key.expert_index)
    for region in candidate_regions(pair, extent):
        actual = region.extract(pair.actual)
        if actual.size < 2:
            continue
        content = describe_unexpected_content(pair.dtype, region.extract(pair.expected), actual)
        if content is not None:
            return Cause("partial-write", f"{region.words} are {content[1]}, the rest is right", group=content[0])
        if previous is not None and np.array_equal(region.extract(previous), actual):
            text = f"{region.words} still hold the previous version, the rest is new"
            return Cause("partial-write", text, group="previous")
    return None


def _find_bit_flip(pair: MatrixPair, extent: DifferenceExtent) -> Cause | None:
    row, column = divmod(extent.first, pair.actual.shape[1])
    flipped = int(pair.expected[row, column] ^ pair.actual[row, column])
    if flipped.bit_count() != 1:
        return None
    place = f"[{row}]" if pair.is_vector else f"[{row}, {column}]"
    text = f"one bit differs: bit {flipped.bit_length() - 1} of element {place}"
    # two casts, or two orders of a sum, differ by the lowest bit as well
    if flipped == 1:
        return Cause("last-place", f"{text}, one unit in the last place, as another rounding makes it", group="one")
    return Cause("bit-flip", text, group="one")


def find_other_rounding(pair: MatrixPair) -> Cause | None:
    """Find finite numbers that all differ by one unit in the last place at most: computed apart, not damaged."""
    if not pair.is_float or pair.dtype not in FORMATS:
        return None
    sign = np.array(FORMATS[pair.dtype].sign, pair.actual.dtype)
    for low, high in row_ranges((pair.actual.shape[0], pair.actual.shape[1])):
        places = []
        for side in (pair.expected, pair.actual):
            part = np.ascontiguousarray(side[low:high])
            if not np.isfinite(decode(pair.dtype, part)).all():
                return None
            places.append((part & ~sign).astype(np.int64))
        if (np.abs(places[0] - places[1]) > 1).any() or (
            (pair.expected[low:high] ^ pair.actual[low:high]) & sign
        ).any():
            return None
    return Cause(
        "last-place", "elements differ by one unit in the last place, as another rounding makes it", group="some"
    )


def find_loss_on_other_side(dtype: str, expected: NDArray[Any], actual: NDArray[Any]) -> Cause | None:
    """Find a tensor that is zero, NaN or constant throughout on the expected side alone."""
    content = describe_unexpected_content(dtype, actual, expected)
    return Cause("lost-there", f"every element of the other side is {content[1]}") if content is not None else None
