"""Scans the beginning of every row of a matrix: enough to rule out that a row is zero, or one number throughout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS

FINGERPRINT_BYTES = 8
"""Bytes of a row's fingerprint."""
ROW_SAMPLE = 64
"""Elements scanned of each row. They fill a cache line or two, of the hundred that a row may have."""


def max_row_patterns(raw: NDArray[np.uint8], dtype: str, row: int) -> bytes:
    """Return for each row the largest pattern without sign among its first elements; 0 if these are all the same.

    raw: The bytes of a whole number of rows.
    row: Bytes of a row.

    Returns one pattern a row, as the unsigned integers of the dtype.
    """
    form = FORMATS[dtype]
    patterns = raw.reshape(-1, row)[:, : ROW_SAMPLE * form.bits // 8].view(form.unsigned)
    bare = np.dtype(form.unsigned).type(form.sign - 1)
    highest = patterns.max(axis=1)
    signed = patterns.view(form.unsigned.replace("u", "i")).max(axis=1)
    maxima = np.maximum(np.where(highest > bare, highest & bare, 0), np.maximum(signed, 0).astype(form.unsigned))
    maxima[highest == patterns.min(axis=1)] = 0
    return bytes(maxima.astype(form.unsigned))


def row_fingerprints(raw: NDArray[np.uint8], row: int) -> bytes:
    """Return the first FINGERPRINT_BYTES bytes of each row, padded with zeros. Rows can only be equal if these are.

    raw: The bytes of a whole number of rows.
    row: Bytes of a row.
    """
    first = raw.reshape(-1, row)[:, :FINGERPRINT_BYTES]
    if row < FINGERPRINT_BYTES:
        first = np.pad(first, ((0, 0), (0, FINGERPRINT_BYTES - row)))
    # As whole words the copy is more than twice as fast as byte by byte.
    return first.view("<u8").tobytes()
