"""Finds rows that hold the bytes of other rows, or nearly equal another row or the mean of all rows.

The model cannot tell the tokens of equal rows apart. ``resize_token_embeddings`` of transformers draws new rows from a
normal distribution with the mean of the old rows and a billionth of their covariance. So they lie a few
hundred-thousandths of the rows' spread apart; bfloat16 rounds by a thousandth.
Source: ``transformers/modeling_utils.py``, ``_init_added_embeddings_weights_with_mean``; John Hewitt, "Initializing New Word
Embeddings for Pretrained Language Models" (2021).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.byte_compare import read_patterns, read_tensor_bytes
from ckptcheck.values.detectors.repeated_shares import find_share_length
from ckptcheck.values.detectors.row_stats import compute_mean_row
from ckptcheck.values.detectors.token_usage import find_output_matrix, find_stop_tokens
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_COMPARED_ROWS = 16
"""Candidates that are compared byte by byte. If all of these are copies, all others with the same fingerprint count as copies
(on the Hub each comparison is a request)."""
MAX_DISTANCE = 1e-2
"""Distance, as a share of a row's length, within which a model cannot tell two rows apart. The nearest control tokens of
SmolLM2 lie at 0.12."""
MAX_SPREAD_SHARE = 0.1
"""The same as a share of the rows' spread: if all rows are similar, a small distance proves nothing."""
PREFIX_TOLERANCE = 2e-2
"""Share of a row's largest number by which the first numbers of a candidate may differ: MAX_DISTANCE at four standard
deviations."""


class NearDuplicate(msgspec.Struct, frozen=True):
    """A row that nearly equals another row, or the mean of all rows."""

    other: int | None
    """The other row, None for the mean of all rows."""
    distance: float
    """As a share of the row's length (its Euclidean norm)."""


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
    share = find_share_length(ckpt, name)
    duplicates = {}
    for row in rows:
        if not 0 <= row < len(fingerprints) or not row_max[row]:
            continue
        same_start = np.flatnonzero((fingerprints == fingerprints[row]) & (row_max == row_max[row]))
        candidates = [
            other for other in same_start.tolist() if other != row and not (share and (other - row) % share == 0)
        ]
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


def find_near_duplicate_rows(
    ckpt: Checkpoint, name: str, rows: Iterable[int], ignored: Container[int] = ()
) -> dict[int, NearDuplicate]:
    """Return row → the row or the mean that it nearly equals, for each of `rows` that does; rows in `ignored` do not count.

    The value pass kept the first numbers of every row. They leave few candidates or none, and only these are read: up to
    MAX_COMPARED_ROWS for each row, and the whole matrix if the mean is a candidate. Packed and 8-bit numbers are too coarse to
    judge. Raises Skip if the values could not be read, OSError if reading fails.
    """
    import numpy as np

    from ckptcheck.values.row_scan import FINGERPRINT_BYTES

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    if not tensor.has_rows or form.integer or form.bits < 16:
        return {}
    # Other rules report a shard that could not be read.
    if name not in ckpt.values.row_fingerprints:
        raise Skip(f"{name} could not be read")
    width = tensor.shape[1]
    prefixes = np.frombuffer(ckpt.values.row_fingerprints[name], form.unsigned).reshape(
        -1, FINGERPRINT_BYTES * 8 // form.bits
    )[:, :width]
    row_max = decode(tensor.dtype, np.frombuffer(ckpt.values.row_max[name], form.unsigned))
    first = np.stack([row_max, *decode(tensor.dtype, np.ascontiguousarray(prefixes.T))])
    judged_rows = [row for row in rows if 0 <= row < len(row_max) and row_max[row] and np.isfinite(first[:, row]).all()]
    if not judged_rows:
        return {}
    with np.errstate(all="ignore"):
        return _find_near_duplicate_rows(ckpt, name, first, judged_rows, ignored)


def _find_near_duplicate_rows(
    ckpt: Checkpoint, name: str, first: NDArray[Any], rows: Iterable[int], ignored: Container[int]
) -> dict[int, NearDuplicate]:
    """Find the near duplicates among rows not known to hold NaN or Inf. first: [peak and first numbers, rows]."""
    import numpy as np

    share = find_share_length(ckpt, name)
    middle = first[1:].mean(axis=1, dtype=np.float64)
    if not np.isfinite(middle).all():
        middle = first[1:, np.isfinite(first).all(axis=0)].mean(axis=1, dtype=np.float64)
    mean: NDArray[Any] | None = None
    neighbours: dict[int, NearDuplicate] = {}
    for row in rows:
        slack = PREFIX_TOLERANCE * float(first[0, row])
        candidates = [
            other
            for other in _find_candidates(first, row, slack)
            # VAL010 reports a rank that was merged twice.
            if other != row and other not in ignored and not (share and (other - row) % share == 0)
        ]
        may_equal_mean = bool((np.abs(middle - first[1:, row]) <= slack).all())
        if not candidates and not may_equal_mean:
            continue
        values = _read_row(ckpt, name, row)
        length = float(np.linalg.norm(values))
        reach = min(MAX_DISTANCE * length, MAX_SPREAD_SHARE * _element_spread(first[1:], middle) * sqrt(values.size))
        if may_equal_mean:
            mean = compute_mean_row(ckpt, name, jobs=ckpt.jobs) if mean is None else mean
            if (distance := float(np.linalg.norm(values - mean))) <= reach:
                neighbours[row] = NearDuplicate(None, distance / length)
                continue
        for other in candidates[:MAX_COMPARED_ROWS]:
            if (distance := float(np.linalg.norm(values - _read_row(ckpt, name, other)))) <= reach:
                neighbours[row] = NearDuplicate(other, distance / length)
                break
    return neighbours


def _element_spread(first: NDArray[Any], middle: NDArray[Any]) -> float:
    """Return the standard deviation of an element over the rows, estimated from the first numbers of each row."""
    import numpy as np

    squares = np.square(first - middle[:, None])
    return sqrt(float(squares[np.isfinite(squares)].mean()))


def _find_candidates(first: NDArray[Any], row: int, slack: float) -> list[int]:
    """Return the rows whose first numbers equal those of `row` within the slack, the nearest first."""
    import numpy as np

    # One element leaves few rows to compare by the others.
    rows = np.flatnonzero(np.abs(first[1] - first[1, row]) <= slack)
    distances = np.abs(first[:, rows] - first[:, [row]]).max(axis=0)
    return [int(rows[index]) for index in np.argsort(distances) if distances[index] <= slack]


def _read_row(ckpt: Checkpoint, name: str, row: int) -> NDArray[Any]:
    """Read a row as float64."""
    tensor = ckpt.tensors[name]
    nbytes = tensor.nbytes // tensor.shape[0]
    return decode(tensor.dtype, read_patterns(ckpt, name, row * nbytes, nbytes)).astype("f8")
