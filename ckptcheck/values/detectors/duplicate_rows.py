"""Finds rows that hold the same bytes as other rows: the model cannot tell their tokens apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
from ckptcheck.values.detectors.duplicate_rank_shards import find_duplicate_rank_shards
from ckptcheck.values.detectors.token_usage import find_output_matrix, find_stop_tokens
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_COMPARED_ROWS = 16
"""Candidates that are compared byte by byte. If all of these are copies, all others with the same fingerprint count as copies
(on the Hub each comparison is a request)."""


def find_duplicate_rows(ckpt: Checkpoint, name: str, rows: Iterable[int]) -> dict[int, list[int]]:
    """Return row → the other rows with the same bytes, for each of `rows` that has any.

    Rows that are zero, or one number throughout, and copies in a rank's part that the matrix holds twice, do not count,
    since other rules report them. Only rows with equal fingerprints are read. Raises Skip for packed dtypes and if the
    values could not be read, OSError if reading fails.
    """
    tensor = ckpt.tensors[name]
    if not tensor.has_rows:
        raise Skip(f"the rows of {name} are packed")
    # Other rules report a shard that could not be read.
    if name not in ckpt.values.row_fingerprints:
        raise Skip(f"{name} could not be read")
    import numpy as np

    fingerprints = np.frombuffer(ckpt.values.row_fingerprints[name], "<u8")
    row_max = np.frombuffer(ckpt.values.row_max[name], FORMATS[tensor.dtype].unsigned)
    nbytes = tensor.nbytes // tensor.shape[0]
    duplicate_shards = find_duplicate_rank_shards(ckpt, name)
    duplicates = {}
    for row in rows:
        if not 0 <= row < len(fingerprints) or not row_max[row]:
            continue
        excluded = {row, *(shard.matching_row(row) for shard in duplicate_shards)}
        same_start = np.flatnonzero((fingerprints == fingerprints[row]) & (row_max == row_max[row]))
        candidates = [int(other) for other in same_start if other not in excluded]
        if not candidates:
            continue
        row_bytes = read_tensor_bytes(ckpt, name, row * nbytes, nbytes)
        copies: list[int] = []
        for number, other in enumerate(candidates):
            if read_tensor_bytes(ckpt, name, other * nbytes, nbytes) == row_bytes:
                copies.append(other)
            if len(copies) == number + 1 == MAX_COMPARED_ROWS:
                copies = candidates
                break
        if copies:
            duplicates[row] = copies
    return duplicates


def find_indistinct_stops(ckpt: Checkpoint) -> dict[int, list[int]]:
    """Return stop token → the other rows with the same bytes, if no stop token has a row of its own; empty if one has.

    Raises as `find_duplicate_rows`.
    """
    stops, matrix = find_stop_tokens(ckpt), find_output_matrix(ckpt)
    if matrix is None or not stops:
        return {}
    duplicates = find_duplicate_rows(ckpt, matrix, stops)
    shared = {row: [other for other in others if other not in stops] for row, others in duplicates.items()}
    return shared if all(shared.get(row) for row in stops) else {}
