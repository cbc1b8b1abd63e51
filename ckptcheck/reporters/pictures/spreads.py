"""Draws how widely the values of every tensor spread, and which share of them is zero or no number, layer by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import place_tensors
from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.linter.pictures import HeatCell, HeatMap, State

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.sketch import Sketch
    from ckptcheck.values.stats import TensorStats

STATES = (
    State("some zeros", "quiet"),
    State("zero", "warn", "every element is zero"),
    State("NaN or Inf", "bad"),
)
MOST_NOTES = 2000
"""Up to this many tensors each cell tells mean and quantiles; with more, the page would be too large."""
LEAST_ZEROS = 0.01
"""Only tensors with at least this share of zeros in a sample are drawn."""


def draw_spreads(ckpt: Checkpoint, title: str) -> HeatMap | None:
    """Return the standard deviation of every tensor of numbers; None without one, or if values are not read."""
    if ckpt.values_read is None:
        return None
    sketches = ckpt.values_read.sketches
    has_notes = len(sketches) <= MOST_NOTES
    cells = {
        name: HeatCell(sketches[name].std, note=_describe_quantiles(sketches[name]) if has_notes else "", name=name)
        for name in ckpt.tensors
        if name in sketches
    }
    caption = "The standard deviation of each tensor, as stored, from a sample of its elements."
    return draw_layer_map(title, caption, cells, (), value_label="standard deviation", grid=place_tensors(ckpt))


def _describe_quantiles(sketch: Sketch) -> str:
    low, _, middle, _, high = (f"{value:.2g}" for value in sketch.quantiles)
    return f"mean {sketch.mean:.2g}, median {middle}, 1 % to 99 %: {low} to {high}"


def draw_zeros(ckpt: Checkpoint, title: str) -> HeatMap | None:
    """Return which share of every tensor is zero, NaN or Inf; None if no tensor has any, or if values are not read."""
    values = ckpt.values_read
    if values is None:
        return None
    cells = {
        name: cell
        for name in ckpt.tensors
        if name in values.tensors and (cell := _draw_zeros(values.tensors[name], values.sketches.get(name)))
    }
    caption = (
        "Only tensors with NaN, Inf or 1 % of zeros are drawn. The share comes from a sample; NaN and Inf are counted."
    )
    grid = place_tensors(ckpt)
    return draw_layer_map(title, caption, cells, STATES, value_label="share of zeros", grid=grid, scale="linear")


def _draw_zeros(stats: TensorStats, sketch: Sketch | None) -> HeatCell | None:
    zeros = sketch.zeros if sketch is not None else 0.0
    if stats.nan or stats.inf:
        return HeatCell(zeros, "NaN or Inf", f"{stats.nan:,} NaN and {stats.inf:,} Inf", stats.name)
    if stats.zero:
        return HeatCell(1.0, "zero", name=stats.name)
    if zeros < LEAST_ZEROS:
        return None
    return HeatCell(zeros, "some zeros", f"{zeros:.2%} of the sample", stats.name)
