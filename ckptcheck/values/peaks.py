"""A glance at the beginning of every row of a matrix: enough to tell that no row can be zero, or one number throughout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ckptcheck.values.dtypes import FORMATS

MARK = 8
"""Bytes of a row's mark."""
GLANCE = 64
"""Elements looked at of each row: a cache line or two, where the row may have a hundred."""


def row_peaks(raw: NDArray[np.uint8], dtype: str, row: int) -> bytes:
    """Return the largest pattern without sign among the first elements of each row; 0 where they are all the same.

    row: bytes of a row; `raw` is a whole number of rows. Returned as the unsigned patterns of the dtype.
    """
    form = FORMATS[dtype]
    patterns = raw.reshape(-1, row)[:, : GLANCE * form.bits // 8].view(form.unsigned)
    bare = np.dtype(form.unsigned).type(form.sign - 1)
    highest = patterns.max(axis=1)
    signed = patterns.view(form.unsigned.replace("u", "i")).max(axis=1)
    peaks = np.maximum(np.where(highest > bare, highest & bare, 0), np.maximum(signed, 0).astype(form.unsigned))
    peaks[highest == patterns.min(axis=1)] = 0
    return bytes(peaks.astype(form.unsigned))


def row_marks(raw: NDArray[np.uint8], row: int) -> bytes:
    """Return the first MARK bytes of each row, shorter rows with zeros after them: rows are equal only where these are."""
    first = raw.reshape(-1, row)[:, :MARK]
    if row < MARK:
        first = np.pad(first, ((0, 0), (0, MARK - row)))
    return first.view("<u8").tobytes()  # more than twice as fast as byte by byte
