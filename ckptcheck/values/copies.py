"""Rows that hold the very bytes of other rows: the model cannot tell their tokens apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.rule import Skip
from ckptcheck.values.compare import read
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.ranks import held_twice
from ckptcheck.values.uses import stops, writes_with

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

ENOUGH = 16
"""Rows compared byte by byte. Where the first so many are copies, all that begin alike are (a repository on the Hub is asked
once for each)."""


def copies(ckpt: Checkpoint, name: str, rows: Iterable[int]) -> dict[int, list[int]]:
    """Return row → the other rows with the same bytes, for those of `rows` that have any.

    Rows that are zero, or one number throughout, are left out: what is wrong with them is another matter. So are rows that are
    copies because a whole rank's part is there twice. The value pass
    has kept the beginning of every row, so only rows that begin alike are read. Raises Skip as `suspects` does, and
    OSError where reading fails.
    """
    import numpy as np

    tensor = ckpt.tensors[name]
    if not tensor.has_rows:
        raise Skip(f"the rows of {name} are packed")
    if name not in ckpt.values.row_marks:  # its shard could not be read: other rules say so
        raise Skip(f"{name} could not be read")
    marks = np.frombuffer(ckpt.values.row_marks[name], "<u8")
    peaks = np.frombuffer(ckpt.values.row_peaks[name], FORMATS[tensor.dtype].unsigned)
    nbytes = tensor.nbytes // tensor.shape[0]
    twins = held_twice(ckpt, name)
    found = {}
    for row in rows:
        if not 0 <= row < len(marks) or not peaks[row]:
            continue
        apart = {row, *(twin.twin(row) for twin in twins)}
        alike = [
            int(other) for other in np.flatnonzero((marks == marks[row]) & (peaks == peaks[row])) if other not in apart
        ]
        if not alike:
            continue
        own = read(ckpt, name, row * nbytes, nbytes)
        same: list[int] = []
        for number, other in enumerate(alike):
            if read(ckpt, name, other * nbytes, nbytes) == own:
                same.append(other)
            if len(same) == number + 1 == ENOUGH:
                same = alike
                break
        if same:
            found[row] = same
    return found


def indistinct_stops(ckpt: Checkpoint) -> dict[int, list[int]]:
    """Return stop → the other rows that score as it does, if no stop is distinct; empty if one is. Errors as `copies`."""
    ends, matrix = stops(ckpt), writes_with(ckpt)
    if matrix is None or not ends:
        return {}
    found = copies(ckpt, matrix, ends)
    shared = {row: [other for other in others if other not in ends] for row, others in found.items()}
    return shared if all(shared.get(row) for row in ends) else {}
