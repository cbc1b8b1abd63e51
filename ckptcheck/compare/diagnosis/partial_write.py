"""Detects partial writes: some rows, columns or a run of elements hold something else, and the rest is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ckptcheck.compare.diagnosis.contents import describe_unexpected_content
from ckptcheck.compare.diagnosis.difference import DifferenceExtent, candidate_regions
from ckptcheck.compare.diagnosis.verdict import Cause

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair


def find_partial_write(pair: MatrixPair, extent: DifferenceExtent) -> Cause | None:
    """Name the region and what it holds: zeros, NaN, a constant, or the previous version; None for anything else."""
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
    return Cause("bit-flip", f"one bit differs: bit {flipped.bit_length() - 1} of element {place}", group="one")
