"""Records a few bytes of a file at regular intervals, its marks: copies of a piece have the same marks."""

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

    begin: where `raw` begins in the file. A mark that `raw` does not hold as a whole does not count.
    """
    import numpy as np

    number = count_marks(begin, raw.size)
    if not number:
        return b""
    first = -begin % MARK_STEP
    return np.ndarray((number, MARK_BYTES), np.uint8, raw, first, (MARK_STEP, 1)).tobytes()


def count_marks(begin: int, nbytes: int) -> int:
    """Return how many marks lie in a run of bytes of a file."""
    return max(0, (nbytes - (-begin % MARK_STEP) - MARK_BYTES) // MARK_STEP + 1)
