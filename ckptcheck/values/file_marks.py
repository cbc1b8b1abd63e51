"""Notes a few bytes of a file at regular places: pieces of the file that are copies of others have the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MARK_STEP = 1 << 16
"""Bytes from one mark to the next, from the start of the file. Disks, networks and object stores move blocks of such sizes."""
MARK_BYTES = 8


def take_marks(raw: NDArray[np.uint8], begin: int) -> bytes:
    """Return the first bytes of each block of the file that begins in `raw`, one after the other.

    begin: where `raw` begins in the file. A mark that does not lie in `raw` as a whole is left out.
    """
    import numpy as np

    number = count_marks(begin, raw.size)
    if not number:
        return b""
    first = -begin % MARK_STEP
    return np.ndarray((number, MARK_BYTES), np.uint8, raw, first, (MARK_STEP, 1)).tobytes()


def count_marks(begin: int, nbytes: int) -> int:
    """Return how many marks a run of bytes of a file has."""
    return max(0, (nbytes - (-begin % MARK_STEP) - MARK_BYTES) // MARK_STEP + 1)
