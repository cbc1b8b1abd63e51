"""Draws how large each module's weights are over the layers, and names the layers that stand out."""

from __future__ import annotations

from math import log, prod, sqrt
from statistics import median
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import OUTSIDE, build_layer_grid
from ckptcheck.linter.pictures import Curves, Mark, Series
from ckptcheck.linter.rule import Skip
from ckptcheck.text.formatting import format_bytes
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.dtypes import FORMATS, decode

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.layer_grid import LayerGrid

SAMPLE_BYTES = 1 << 27
"""Bytes that are read again at most, for all tensors together."""
MOST_ELEMENTS, RUNS = 1 << 16, 8
"""Elements of one tensor that are read, in runs that are spread evenly."""
MIN_LAYERS, MOST_SERIES, MOST_MARKS = 4, 24, 8
MIN_FACTOR, MIN_DEVIATIONS = 3.0, 8.0
"""A layer is marked that is this many times as large or small as its module's median, and this many median deviations away."""


def draw_norm_curves(ckpt: Checkpoint, title: str) -> Curves | None:
    """Return one curve for each kind of weight; None for fewer than MIN_LAYERS layers. Reads a sample of each weight.

    Raises Skip where values are not read, OSError if reading fails.
    """
    if "values" not in vars(ckpt):
        raise Skip("values are not read")
    names = [
        name for name, stats in ckpt.values.tensors.items() if stats.dtype in FLOATS and name in ckpt.tensor_to_file
    ]
    grid = build_layer_grid(name for name in names if name.endswith("weight") or ".experts." in name)
    first = 1 if grid.columns[:1] == (OUTSIDE,) else 0
    if len(grid.columns) - first < MIN_LAYERS:
        return None
    kinds = _group_names(grid, first)
    number = sum(len(members) for layers in kinds.values() for members in layers.values())
    most = max(min(MOST_ELEMENTS, SAMPLE_BYTES // (2 * max(number, 1))), 256)
    series = []
    total = 0
    for row, layers in kinds.items():
        values: list[float | None] = []
        for column in range(first, len(grid.columns)):
            sizes = []
            for name in layers.get(column, ()):
                size, nbytes = _measure_size(ckpt, name, most)
                total += nbytes
                if size is not None:
                    sizes.append(size)
            values.append(median(sizes) if sizes else None)
        keys = tuple(
            layers[column][0] if len(layers.get(column, ())) == 1 else "" for column in range(first, len(grid.columns))
        )
        series.append(Series(grid.rows[row], tuple(values), keys=keys))
    return Curves(
        title,
        f"The root mean square of each weight; of experts, the median. It comes from a sample of up to {most:,} elements of each "
        f"tensor ({format_bytes(total)} were read for it). Circles name layers that stand out from their module's others.",
        tuple(int(text) for text in grid.columns[first:]),
        tuple(series),
        "layer",
        "root mean square",
        "log",
        marks=tuple(_find_outliers(series, grid.columns[first:])),
    )


def _group_names(grid: LayerGrid, first: int) -> dict[int, dict[int, list[str]]]:
    """Return row → column → tensors, for the kinds of weight that most layers have."""
    kinds: dict[int, dict[int, list[str]]] = {}
    for name, place in grid.places.items():
        if place.column >= first:
            kinds.setdefault(place.row, {}).setdefault(place.column, []).append(name)
    chosen = sorted((row for row in kinds if len(kinds[row]) >= MIN_LAYERS), key=lambda row: -len(kinds[row]))
    return {row: kinds[row] for row in sorted(chosen[:MOST_SERIES])}


def _measure_size(ckpt: Checkpoint, name: str, most: int) -> tuple[float | None, int]:
    """Return the root mean square of the finite ones among a sample of the elements, and how many bytes were read."""
    import numpy as np

    tensor = ckpt.tensors[name]
    width = FORMATS[tensor.dtype].bits // 8
    elements = prod(tensor.shape)
    if not elements or tensor.nbytes != elements * width:
        return None, 0
    if elements <= most:
        pieces = [(0, elements)]
    else:
        together = max(most // RUNS, 1)
        pieces = [(run * (elements - together) // (RUNS - 1), together) for run in range(RUNS)]
    squares, number = 0.0, 0
    for begin, length in pieces:
        raw = read_tensor_bytes(ckpt, name, begin * width, length * width)
        if len(raw) < length * width:
            return None, 0
        values = decode(tensor.dtype, np.frombuffer(raw, FORMATS[tensor.dtype].unsigned)).astype(np.float64)
        values = values[np.isfinite(values)]
        squares += float(values @ values)
        number += values.size
    return (sqrt(squares / number) if number else None), sum(length for _, length in pieces) * width


def _find_outliers(series: list[Series], layers: tuple[str, ...]) -> list[Mark]:
    """Return the points that are far from their series' median, farthest first: on a logarithmic scale, as it is drawn."""
    found = []
    for one in series:
        logs = [log(value) for value in one.values if value is not None and value > 0]
        if len(logs) < MIN_LAYERS:
            continue
        middle = median(logs)
        spread = median(abs(value - middle) for value in logs)
        for at, value in enumerate(one.values):
            if value is None or value <= 0:
                continue
            distance = abs(log(value) - middle)
            if distance > max(log(MIN_FACTOR), MIN_DEVIATIONS * spread):
                found.append((distance, Mark(one.name, at, f"{one.name} of layer {layers[at]}")))
    return [mark for _, mark in sorted(found, key=lambda entry: -entry[0])[:MOST_MARKS]]
