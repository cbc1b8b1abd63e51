"""Finds tables of learned positions that were never trained.

A model learns for neighbouring positions nearly the same vector; drawn rows resemble each other by chance alone.
"""

from __future__ import annotations

import re
from math import sqrt
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

POSITIONS = re.compile(r"(^|\.)(wpe|position_embeddings?|embed_positions|position_embed|pos_embeddings?)\.weight$")
"""Names of tables with a row for each place in a text."""
OTHER_PLACES = re.compile(r"(?i)vis|image|patch|pixel|vit|video|audio|speech|relative|query|spatial|2d")
"""Parts of the names of tables whose rows are no places in a text: patches in a plane, frames, distances, objects to find."""
MIN_ROWS, MIN_COLUMNS, MAX_ROWS = 128, 64, 2048
"""A smaller table is not judged. Of a larger one this many rows are compared."""
MAX_CHANCE, MAX_NEIGHBOURS = 1.2, 8.0
"""Cosines of rows that were drawn: their root mean square, and the mean of neighbours in standard errors, both in units of chance.
Trained tables have 1.75 and more, and 75 and more."""


def find_position_tables(ckpt: Checkpoint) -> list[str]:
    """Return the tables of learned positions in a text that are large enough to be judged."""
    return [
        name
        for template, names in ckpt.layout.names_by_template.items()
        if POSITIONS.search(template) and not OTHER_PLACES.search(template)
        for name in names
        if (tensor := ckpt.tensors[name]).dtype in FLOATS
        and len(tensor.shape) == 2
        and tensor.shape[0] >= MIN_ROWS
        and tensor.shape[1] >= MIN_COLUMNS
    ]


def find_drawn_positions(ckpt: Checkpoint) -> list[str]:
    """Return the tables of positions whose rows resemble each other only by chance, as before training.

    A model whose config names another kind of positions does not use its table, and a model whose token rows resemble
    each other only by chance was not trained.

    Raises Skip if the file has shrunk, OSError if reading fails.
    """
    kind = ckpt.config.get("position_embedding_type") if ckpt.config is not None else None
    if kind not in (None, "absolute"):
        return []
    drawn = [name for name in find_position_tables(ckpt) if _is_drawn(_read_table(ckpt, name))]
    embedding = ckpt.components.embedding
    if not drawn or embedding is None or ckpt.tensors[embedding].dtype not in FLOATS:
        return []
    return [] if _is_drawn(_read_table(ckpt, embedding)) else drawn


def _read_table(ckpt: Checkpoint, name: str) -> NDArray[Any]:
    """Read the rows of a table that are compared."""
    import numpy as np

    stats = ckpt.values.tensors.get(name)
    if stats is None:
        raise Skip(f"{name} could not be read")
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


def _to_unit(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows as vectors of length one; a row without a direction as zeros."""
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(np.isfinite(lengths) & (lengths > 0), rows / lengths, 0.0)
