"""Finds rows of a trained embedding or head that were drawn anew from an initialiser.

A row that was drawn is independent of all others: its squared cosine with any direction is 1 / columns on average. Training
makes rows alike. Of 512 rows, none of SmolLM2-135M and two of all-MiniLM-L6-v2 look drawn. With half of the rows drawn
anew, in one range or at random, 45 to 51 % do. The mean of a squared cosine of a normal vector is textbook statistics.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.matrix_samples import MatrixPart, read_rows
from ckptcheck.values.detectors.token_usage import has_token_ids
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

RUNS, RUN_ROWS, COLUMNS = 64, 8, 512
"""Runs of rows that are read, spread evenly; rows of a run; elements of a row that are compared."""
MAX_ALIKENESS = 0.2
"""The mean squared cosine of a drawn row with others, times the columns, is 1, and varies by 0.06; this much more is training."""
MAX_ALONG = 9.0
"""The same for a row and the one direction that trained rows share: three standard deviations."""
MIN_TRAINING = 1.75
"""How far the median trained row lies beyond these bounds."""
MIN_SHARE = 0.1
"""Share of the rows that has to be drawn, and that has to be trained."""
MAX_SIZE_SPREAD = 2.0
"""Sizes of rows of one draw vary by 1 / sqrt(2 * columns); the found rows' sizes may vary this many times as much."""
CONTIGUOUS = 0.9
"""A range is named if it holds this share of the drawn rows."""


class FreshRows(msgspec.Struct, frozen=True):
    """Rows of a matrix that look drawn."""

    share: float
    """Their share of all rows with tokens."""
    size: float
    """Their root mean square."""
    trained_size: float
    """The root mean square of the median other row."""
    span: tuple[int, int] | None
    """The first and the last row of their range, within a 64th of the matrix; None if they are spread over it."""


@remembered
def find_fresh_rows(ckpt: Checkpoint, name: str) -> FreshRows | None:
    """Return the rows that look drawn, if at least a tenth of the rows do and a tenth do not; otherwise None.

    It reads 512 rows. It does not judge 8-bit and packed numbers. Raises Skip if the file shrank, OSError if reading
    fails.
    """
    import numpy as np

    if (part := choose_part(ckpt, name)) is None:
        return None
    with np.errstate(all="ignore"):
        rows = read_rows(ckpt, *part).astype(np.float32)
        training, sizes = _measure_training(rows)
        return _judge(part.rows, training, sizes, rows.shape[1])


def choose_part(ckpt: Checkpoint, name: str) -> MatrixPart | None:
    """Return the first elements of the rows that are read, in runs; None for a matrix that is not judged."""
    import numpy as np

    tensor = ckpt.tensors[name]
    form = FORMATS[tensor.dtype]
    if not tensor.has_rows or form.integer or form.bits < 16 or tensor.shape[1] < 64:
        return None
    number = tensor.shape[0]
    if ckpt.tokenizer is not None and has_token_ids(ckpt):
        number = min(number, ckpt.tokenizer.max_id + 1)
    if number < 2 * RUNS * RUN_ROWS:
        return None
    starts = [run * (number - RUN_ROWS) // (RUNS - 1) for run in range(RUNS)]
    stats = TensorStats(name, ckpt.tensor_to_file[name], tensor.dtype, tensor.shape)
    return MatrixPart(
        stats, np.add.outer(starts, np.arange(RUN_ROWS)).ravel(), np.arange(min(tensor.shape[1], COLUMNS))
    )


def _measure_training(rows: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how clearly each row was trained, below 1 if it may be drawn, and its root mean square; NaN for bad rows.

    Trained rows share one direction, or are alike in others.
    """
    import numpy as np

    columns = rows.shape[1]
    sizes = np.sqrt(np.square(rows, dtype=np.float64).mean(axis=1))
    sizes[~(np.isfinite(sizes) & (sizes > 0))] = np.nan
    good = np.isfinite(sizes)
    units = np.where(good[:, None], rows / (sizes[:, None] * sqrt(columns)), 0).astype(np.float32)
    direction = units.mean(axis=0)
    direction /= max(float(np.linalg.norm(direction)), 1e-30)
    along = units @ direction
    units -= np.outer(along, direction)
    units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-30)
    cosines = units @ units.T
    # A copy of a row, or the row itself, shows no training.
    cosines[np.abs(cosines) > 0.99] = 0
    squares = np.square(cosines).sum(axis=1, dtype=np.float64)
    alikeness = squares / max(int(good.sum()) - 1, 1) * columns
    training = np.maximum((alikeness - 1) / MAX_ALIKENESS, np.square(along) * columns / MAX_ALONG)
    return np.where(good, training, np.nan), sizes


def _judge(
    places: NDArray[np.intp],
    training: NDArray[np.float64],
    sizes: NDArray[np.float64],
    columns: int,
) -> FreshRows | None:
    """Judge by the training and the sizes of the sampled rows. places: the numbers of these rows."""
    import numpy as np

    drawn, trained = training < 1, training >= 1
    if min(drawn.mean(), trained.mean()) < MIN_SHARE or np.median(training[trained]) < MIN_TRAINING:
        return None
    middle = float(np.median(sizes[drawn]))
    # The median deviation, because a few rare tokens that training hardly reached may be among them.
    spread = 1.4826 * float(np.median(np.abs(sizes[drawn] - middle))) / middle
    if spread > MAX_SIZE_SPREAD / sqrt(2 * columns):
        return None
    # A run of rows is fresh if most of its rows are.
    fresh = np.flatnonzero(drawn.reshape(RUNS, RUN_ROWS).mean(axis=1) > 0.5)
    is_range = (
        len(fresh) > 0 and len(fresh) == fresh[-1] - fresh[0] + 1 and drawn.sum() * CONTIGUOUS <= len(fresh) * RUN_ROWS
    )
    span = (int(places[fresh[0] * RUN_ROWS]), int(places[fresh[-1] * RUN_ROWS + RUN_ROWS - 1])) if is_range else None
    return FreshRows(float(drawn.mean()), middle, float(np.median(sizes[trained])), span)
