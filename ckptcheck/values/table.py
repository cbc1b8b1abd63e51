"""What was seen, as a table for those who want to plot: one flat record per tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.rule import Skip
from ckptcheck.values.roles import is_router, vital
from ckptcheck.values.rows import row_stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.stats import TensorStats

COLUMNS = ("row_mean_abs", "row_max_abs", "row_std")
"""Lists with an entry per row, None for tensors whose rows mean nothing by themselves. Of the numbers as stored, unscaled."""
DIGITS = 6
"""Significant digits of a row's statistics: 150,000 tokens take 5 MB."""


def records(ckpt: Checkpoint) -> list[dict[str, object]]:
    """Return one record per tensor, every one with the same keys. What is not finite becomes None.

    Embeddings, heads and routers have columns with a number per row (a token, an expert); only these are read once more.
    Raises Skip where values are not read.
    """
    return [
        {"target": ckpt.target, **{key: _plain(value) for key, value in msgspec.structs.asdict(stats).items()}}
        | _columns(ckpt, stats)
        for stats in ckpt.values.tensors.values()
    ]


def as_json(table: Iterable[dict[str, object]]) -> bytes:
    """Return a JSON list with a record on each line: the lists in them are long."""
    return ("[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in table) + "\n]\n").encode()


def _columns(ckpt: Checkpoint, stats: TensorStats) -> dict[str, object]:
    name = stats.name
    wanted = name in vital(ckpt) or is_router(ckpt, stats)
    if not wanted or ckpt.holders.get(name) != stats.shard or not ckpt.tensors[name].has_rows:
        return dict.fromkeys(COLUMNS)
    try:
        rows = row_stats(ckpt, name, jobs=ckpt.jobs)
    except (Skip, OSError):  # it shrank or vanished since; ST021 and VAL011 are there to say so
        return dict.fromkeys(COLUMNS)
    return dict(zip(COLUMNS, map(_numbers, (rows.mean_abs, rows.max_abs, rows.std)), strict=True))


def _numbers(column: NDArray[np.float32]) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in column.tolist()]


def _plain(value: object) -> object:
    if isinstance(value, float) and not isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value
