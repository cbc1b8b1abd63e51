"""Draws how large each module's weights are over the layers, and names the layers that stand out."""

from __future__ import annotations

from math import log
from statistics import median
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import OUTSIDE, place_tensors
from ckptcheck.linter.pictures import Curves, Mark, Series
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.matrix_samples import FLOATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.layer_grid import LayerGrid

MIN_LAYERS, MOST_SERIES, MOST_MARKS = 4, 24, 8
MIN_FACTOR, MIN_DEVIATIONS = 3.0, 8.0
"""A marked layer is this many times as large or small as its module's median, and this many median deviations away."""


def draw_norm_curves(ckpt: Checkpoint, title: str) -> Curves | None:
    """Return one curve for each kind of weight, from the sketches of the value pass; None for fewer than MIN_LAYERS layers.

    Raises Skip if values are not read.
    """
    values = ckpt.values_read
    if values is None:
        raise Skip("values are not read")
    names = {
        name
        for name, stats in values.tensors.items()
        if stats.dtype in FLOATS and (name.endswith("weight") or ".experts." in name)
    }
    grid = place_tensors(ckpt)
    first = 1 if grid.columns[:1] == (OUTSIDE,) else 0
    if len(grid.columns) - first < MIN_LAYERS:
        return None
    sketches = values.sketches
    series = []
    for row, layers in _group_names(grid, names, first).items():
        columns = range(first, len(grid.columns))
        sizes = [[sketches[name].rms for name in layers.get(column, ()) if name in sketches] for column in columns]
        keys = tuple(layers[column][0] if len(layers.get(column, ())) == 1 else "" for column in columns)
        series.append(Series(grid.rows[row], tuple(median(each) if each else None for each in sizes), keys=keys))
    most = max((sketch.elements for sketch in sketches.values()), default=0)
    return Curves(
        title,
        f"The root mean square of each weight, which is its norm over the root of its size; of experts, the median. It comes from"
        f" up to {most:,} elements of each tensor. Circles name layers that stand out from their module's others.",
        tuple(int(text) for text in grid.columns[first:]),
        tuple(series),
        "layer",
        "root mean square",
        "log",
        marks=tuple(_find_outliers(series, grid.columns[first:])),
    )


def _group_names(grid: LayerGrid, names: set[str], first: int) -> dict[int, dict[int, list[str]]]:
    """Return row → column → tensors, for the kinds of weight that most layers have."""
    kinds: dict[int, dict[int, list[str]]] = {}
    for place in grid.places:
        if place.column >= first and (chosen := [name for name in place.names if name in names]):
            kinds.setdefault(place.row, {}).setdefault(place.column, []).extend(chosen)
    largest = sorted((row for row in kinds if len(kinds[row]) >= MIN_LAYERS), key=lambda row: -len(kinds[row]))
    return {row: kinds[row] for row in sorted(largest[:MOST_SERIES])}


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
