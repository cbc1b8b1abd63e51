"""Rows that all but equal another row, or the mean of all: as new tokens start when an embedding is resized.

``resize_token_embeddings`` of transformers draws them from a normal distribution that has the mean of the old rows and a
billionth of their covariance, so they lie a few hundred-thousandths of the rows' spread apart; bfloat16 rounds by a thousandth.
Source: ``transformers/modeling_utils.py``, ``_init_added_embeddings_weights_with_mean``; John Hewitt, "Initializing New Word
Embeddings for Pretrained Language Models" (2021).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from ckptcheck.rule import Skip
from ckptcheck.values.compare import read
from ckptcheck.values.copies import ENOUGH
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.ranks import held_twice
from ckptcheck.values.rows import row_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

CLOSE = 1e-2
"""Share of a row's length within which two rows are one to the model; the nearest control tokens of SmolLM2 lie at 0.12."""
APART = 0.1
"""The same as a share of the rows' spread: where all rows are nearly alike, nearness says nothing."""
SLACK = 2e-2
"""Share of a row's largest number by which the first ones of a neighbour may differ: CLOSE at four standard deviations."""


@dataclass(frozen=True)
class Near:
    """What a row is next to. other: a row, None for the mean of all. distance: as a share of the row's length."""

    other: int | None
    distance: float


def near(ckpt: Checkpoint, name: str, rows: Iterable[int], ignored: Container[int] = ()) -> dict[int, Near]:
    """Return row → the mean or the row that it all but equals, for those of `rows` that do; `ignored` are no neighbours.

    The value pass has kept the first numbers of every row, which leave few candidates, or none: only these are read, ENOUGH for
    each row, and the matrix once more where the mean is one. Packed and 8-bit numbers are too coarse to tell. Raises Skip
    where the values could not be read, OSError where reading fails.
    """
    import numpy as np

    from ckptcheck.values.peaks import MARK

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    if not tensor.has_rows or form.integer or form.bits < 16:
        return {}
    if name not in ckpt.values.row_marks:  # its shard could not be read: other rules say so
        raise Skip(f"{name} could not be read")
    width = tensor.shape[1]
    marks = np.frombuffer(ckpt.values.row_marks[name], form.unsigned).reshape(-1, MARK * 8 // form.bits)[:, :width]
    peaks = decode(tensor.dtype, np.frombuffer(ckpt.values.row_peaks[name], form.unsigned))
    first = np.stack([peaks, *decode(tensor.dtype, np.ascontiguousarray(marks.T))])
    wanted = [row for row in rows if 0 <= row < len(peaks) and peaks[row] and np.isfinite(first[:, row]).all()]
    if not wanted:
        return {}
    with np.errstate(all="ignore"):
        return _near(ckpt, name, first, wanted, ignored)


def _near(
    ckpt: Checkpoint, name: str, first: NDArray[Any], wanted: Iterable[int], ignored: Container[int]
) -> dict[int, Near]:
    """`near` for rows that are finite as far as is known. first: [peak and first numbers, rows]."""
    import numpy as np

    twins = held_twice(ckpt, name)
    middle = first[1:].mean(axis=1, dtype=np.float64)
    if not np.isfinite(middle).all():
        middle = first[1:, np.isfinite(first).all(axis=0)].mean(axis=1, dtype=np.float64)
    mean: NDArray[Any] | None = None
    found: dict[int, Near] = {}
    for row in wanted:
        slack = SLACK * float(first[0, row])
        apart = {row, *(twin.twin(row) for twin in twins)}  # a rank merged twice is told as that
        alike = [other for other in _alike(first, row, slack) if other not in apart and other not in ignored]
        central = bool((np.abs(middle - first[1:, row]) <= slack).all())
        if not alike and not central:
            continue
        own = _row(ckpt, name, row)
        length = float(np.linalg.norm(own))
        reach = min(CLOSE * length, APART * _spread(first[1:], middle) * sqrt(own.size))
        if central:
            mean = row_mean(ckpt, name, jobs=ckpt.jobs) if mean is None else mean
            if (distance := float(np.linalg.norm(own - mean))) <= reach:
                found[row] = Near(None, distance / length)
                continue
        for other in alike[:ENOUGH]:
            if (distance := float(np.linalg.norm(own - _row(ckpt, name, other)))) <= reach:
                found[row] = Near(other, distance / length)
                break
    return found


def _spread(first: NDArray[Any], middle: NDArray[Any]) -> float:
    """The standard deviation of a number over the rows, by the first numbers of each."""
    import numpy as np

    squares = np.square(first - middle[:, None])
    return sqrt(float(squares[np.isfinite(squares)].mean()))


def _alike(first: NDArray[Any], row: int, slack: float) -> list[int]:
    """Return the rows whose numbers are those of `row` within the slack, the nearest first."""
    import numpy as np

    rows = np.flatnonzero(np.abs(first[1] - first[1, row]) <= slack)  # one column leaves few for the others
    away = np.abs(first[:, rows] - first[:, [row]]).max(axis=0)
    return [int(rows[place]) for place in np.argsort(away) if away[place] <= slack]


def _row(ckpt: Checkpoint, name: str, row: int) -> NDArray[Any]:
    """Read a row as float64."""
    import numpy as np

    tensor = ckpt.tensors[name]
    nbytes = tensor.nbytes // tensor.shape[0]
    raw = read(ckpt, name, row * nbytes, nbytes)
    if len(raw) < nbytes:
        raise Skip(f"{name} shrank while it was being read")
    return decode(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned)).astype(np.float64)
