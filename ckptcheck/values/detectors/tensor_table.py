"""Builds a table of the value statistics to plot or process further: one flat record per tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.roles import find_vocabulary_tensors, is_router
from ckptcheck.values.detectors.row_stats import compute_row_stats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.sketch import Sketch
    from ckptcheck.values.stats import TensorStats

COLUMNS = ("row_mean_abs", "row_max_abs", "row_std")
"""Columns that hold a list with an entry per row, or None for tensors whose rows have no meaning of their own. They describe
the numbers as stored, without scales."""
SKETCH_COLUMNS = ("sampled", "mean", "std", "rms", "quantiles")
"""Columns that come from a sample of so many elements: the quantiles at 1, 25, 50, 75 and 99 percent."""
DIGITS = 6
"""Significant digits of a sample's and a row's statistics. With 6, a table for 150,000 tokens takes 5 MB."""


def tensor_records(ckpt: Checkpoint) -> list[dict[str, object]]:
    """Return one record per tensor, all with the same keys. Numbers that are not finite become None.

    Mean, spread and quantiles come from a sample, where the pass took one. Embeddings, heads and routers also get the columns
    with a number per row (per token or expert); only these are read again.
    Raises Skip if values are not read.
    """
    return [
        {"target": ckpt.target, **{key: _to_json_value(value) for key, value in msgspec.structs.asdict(stats).items()}}
        | _sketch_columns(ckpt.values.sketches.get(stats.name))
        | _row_columns(ckpt, stats)
        for stats in ckpt.values.tensors.values()
    ]


def encode_records(table: Iterable[dict[str, object]]) -> bytes:
    """Return a JSON list with one record per line, since the lists in a record are long."""
    return ("[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in table) + "\n]\n").encode()


def _sketch_columns(sketch: Sketch | None) -> dict[str, object]:
    """Return the columns that come from a sample, rounded; None without a sample, as for packed dtypes."""
    if sketch is None:
        return dict.fromkeys(SKETCH_COLUMNS)
    numbers = (sketch.mean, sketch.std, sketch.rms, *sketch.quantiles)
    mean, std, rms, *quantiles = _round_numbers(numbers)
    return dict(zip(SKETCH_COLUMNS, (sketch.elements, mean, std, rms, quantiles), strict=True))


def _row_columns(ckpt: Checkpoint, stats: TensorStats) -> dict[str, object]:
    name = stats.name
    has_row_columns = name in find_vocabulary_tensors(ckpt) or is_router(ckpt, stats)
    if not has_row_columns or ckpt.tensor_to_file.get(name) != stats.shard or not ckpt.tensors[name].has_rows:
        return dict.fromkeys(COLUMNS)
    try:
        rows = compute_row_stats(ckpt, name, jobs=ckpt.jobs)
    # The file shrank or vanished since the pass; ST001 and VAL011 report that.
    except (Skip, OSError):
        return dict.fromkeys(COLUMNS)
    return dict(zip(COLUMNS, map(_round_column, (rows.mean_abs, rows.max_abs, rows.std)), strict=True))


def _round_column(column: NDArray[np.float32]) -> list[float | None]:
    return _round_numbers(column.tolist())


def _round_numbers(numbers: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in numbers]


def _to_json_value(value: object) -> object:
    if isinstance(value, float) and not isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value
