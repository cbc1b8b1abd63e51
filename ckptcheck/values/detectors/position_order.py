"""Finds tables of learned positions whose rows are out of order, or were never trained.

A model learns for neighbouring positions nearly the same vector. So the row most similar to a row is one of its
neighbours, and a table with shuffled rows or exchanged parts still shows where each row belongs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log, sqrt
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.stats import TensorStats

POSITIONS = re.compile(r"(^|\.)(wpe|position_embeddings?|embed_positions|position_embed|pos_embeddings?)\.weight$")
"""Names of tables with a row for each place in a text."""
OTHER_PLACES = re.compile(r"(?i)vis|image|patch|pixel|vit|video|audio|speech|relative|query|spatial|2d")
"""Parts of the names of tables whose rows are no places in a text: patches in a plane, frames, distances, objects to find."""
MIN_ROWS, MIN_COLUMNS, MAX_ROWS = 128, 64, 2048
"""A smaller table is not judged. Of a larger one this many rows are compared."""
NEAR = 4
"""Distance up to which a row is a neighbour."""
ALIKE, CHANCE = 0.5, 2.0
"""Cosine at which a row surely resembles another: this much, and so many times the largest cosine of drawn rows."""
MIN_ALIKE = 1 / 8
"""Share of the rows that have to resemble another one. IgLM was trained with a third of its positions."""
MAX_IN_ORDER, MAX_REGULAR = 0.25, 0.5
"""In a shuffled table at most this share of these rows have a neighbour as most similar row, and at most this share lie
at one of four distances: a table that repeats a shorter one (Longformer), or counts patches row by row, has regular
distances."""
PARTS = (2, 4, 8)
"""Numbers of parts that may have changed places."""
MAX_CHANCE, MAX_NEIGHBOURS = 1.2, 8.0
"""Cosines of rows that were drawn: their root mean square, and the mean of neighbours in standard errors, both in units of chance.
Trained tables have 1.75 and more, and 75 and more."""
MIN_GAP = 0.3
"""The cosine at the seam where a part belongs is larger by this much than at the seam where it stands."""


@dataclass(frozen=True)
class DisorderedPositions:
    """A table of positions that is out of order."""

    rows: int
    """How many rows were compared."""
    alike: int
    """How many of them surely resemble another row."""
    in_order: int
    """How many of these resemble one of their neighbours most."""


@dataclass(frozen=True)
class MovedPart:
    """Two parts of a table that belong together and do not stand together."""

    parts: int
    """The number of equal parts of the table."""
    end: int
    """The last row of the one part."""
    start: int
    """The first row of the part that continues it."""
    cosine: float
    """Cosine of these two rows."""
    found: float
    """The larger of the cosines at the two seams where they stand."""


def find_position_tables(ckpt: Checkpoint) -> list[str]:
    """Return the tables of learned positions in a text that are large enough to be judged."""
    tensors = ckpt.tensors
    return [
        name
        for kind, names in ckpt.layout.names_by_template.items()
        if POSITIONS.search(kind) and not OTHER_PLACES.search(kind)
        for name in names
        if (tensor := tensors[name]).dtype in FLOATS
        and len(tensor.shape) == 2
        and tensor.shape[0] >= MIN_ROWS
        and tensor.shape[1] >= MIN_COLUMNS
    ]


def find_drawn_positions(ckpt: Checkpoint) -> list[str]:
    """Return the tables of positions whose rows resemble each other only by chance, as before training.

    A model whose config names another kind of positions does not use its table, and a model whose token rows resemble
    each other only by chance was not trained. Raises as `judge_positions`.
    """
    kind = ckpt.config.get("position_embedding_type") if ckpt.config is not None else None
    if kind not in (None, "absolute"):
        return []
    drawn = [name for name in find_position_tables(ckpt) if _is_drawn(_read_table(ckpt, name))]
    embedding = ckpt.components.embedding
    if not drawn or embedding is None or ckpt.tensors[embedding].dtype not in FLOATS:
        return []
    return [] if _is_drawn(_read_table(ckpt, embedding)) else drawn


def judge_positions(ckpt: Checkpoint, name: str) -> DisorderedPositions | MovedPart | None:
    """Return how a table of positions is out of order; None if it is in order, or shows no order.

    Raises Skip if the file has shrunk, OSError if reading fails.
    """
    stats = _find_stats(ckpt, name)
    return judge_order(stats.shape[0], partial(read_rows, ckpt, stats))


def _find_stats(ckpt: Checkpoint, name: str) -> TensorStats:
    stats = ckpt.values.tensors.get(name)
    if stats is None:
        raise Skip(f"{name} could not be read")
    return stats


def _read_table(ckpt: Checkpoint, name: str) -> NDArray[Any]:
    """Read the rows of a table that are compared."""
    import numpy as np

    stats = _find_stats(ckpt, name)
    return read_rows(ckpt, stats, np.arange(min(stats.shape[0], MAX_ROWS)))


def _is_drawn(rows: NDArray[Any]) -> bool:
    """Whether rows resemble each other only by chance."""
    import numpy as np

    with np.errstate(all="ignore"):
        unit = _to_unit(rows - rows.mean(axis=0))
        unit = unit[unit.any(axis=1)]
        number, columns = unit.shape
        if number < MIN_ROWS:
            return False
        # The cosines of all pairs without the large matrix of pairs: |U Uᵀ| = |Uᵀ U|.
        squares = float(np.square(unit.T @ unit).sum()) - number
        spread = sqrt(max(0.0, squares) / (number * (number - 1)) * columns)
        neighbours = float(np.einsum("ij,ij->", unit[1:], unit[:-1])) / (number - 1)
        return spread <= MAX_CHANCE and abs(neighbours) * sqrt((number - 1) * columns) <= MAX_NEIGHBOURS


def judge_order(
    number: int, read: Callable[[NDArray[np.intp]], NDArray[Any]]
) -> DisorderedPositions | MovedPart | None:
    """Return how the rows of a table are out of order; None if they are in order, or show no order.

    read: returns the rows with some indices.
    """
    import numpy as np

    with np.errstate(all="ignore"):
        rows = read(np.arange(min(number, MAX_ROWS)))
        centre = rows.mean(axis=0)
        least = max(ALIKE, CHANCE * sqrt(2 * log(len(rows)) / rows.shape[1]))
        found: DisorderedPositions | MovedPart | None = _judge_neighbours(_to_unit(rows - centre), least)
        for parts in PARTS:
            if found is None and number % parts == 0:
                size = number // parts
                ends, starts = (_to_unit(read(np.arange(first, number, size)) - centre) for first in (size - 1, 0))
                found = _judge_seams(ends @ starts.T, size, least)
        return found


def _to_unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows as vectors of length one; a row without a direction as zeros."""
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(np.isfinite(lengths) & (lengths > 0), rows / lengths, 0.0)


def _judge_neighbours(unit: NDArray[Any], least: float) -> DisorderedPositions | None:
    """Find for each row the most similar other row."""
    import numpy as np

    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -1)
    distances = np.abs(cosines.argmax(axis=1) - np.arange(len(unit)))[cosines.max(axis=1) >= least]
    if len(distances) < MIN_ALIKE * len(unit):
        return None
    in_order = int(np.count_nonzero(distances <= NEAR))
    regular = np.sort(np.unique(distances, return_counts=True)[1])[-4:].sum()
    if in_order > MAX_IN_ORDER * len(distances) or regular > MAX_REGULAR * len(distances):
        return None
    return DisorderedPositions(len(unit), len(distances), in_order)


def _judge_seams(cosines: NDArray[Any], size: int, least: float) -> MovedPart | None:
    """Find two parts that belong together and do not stand together.

    cosines: of the last row of each part with the first of each part.
    """
    inner = cosines.diagonal(offset=1)
    for part, row in enumerate(cosines):
        after = max((other for other in range(len(row)) if other != part), key=row.__getitem__)
        if after == part + 1 or row[after] < least:
            continue
        # The end of the table and its start stand at no seam: then another one has to be broken.
        seams = [inner[place] for place in (part, after - 1) if 0 <= place < len(inner)] or [inner.min()]
        if row[after] >= max(seams) + MIN_GAP:
            last = size * (part + 1) - 1
            return MovedPart(len(row), last, size * after, float(row[after]), max(0.0, *map(float, seams)))
    return None
