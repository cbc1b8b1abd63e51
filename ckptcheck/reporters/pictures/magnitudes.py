"""Draws the largest magnitude, NaN and zeros of every tensor, layer by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layer_grid import place_tensors
from ckptcheck.checkpoint.layer_map import draw_layer_map
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.linter.pictures import HeatCell, HeatMap, State
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.values.stats import TensorStats

STATES = (
    State("packed", "quiet", "integers, whose size says nothing"),
    State("constant", "notice", "every element is the same number"),
    State("zero", "warn", "every element is zero"),
    State("not read", "gone", "its file could not be read, or values are not read"),
    State("NaN or Inf", "bad"),
)

NOT_READ = HeatCell(state="not read")


def draw_magnitudes(ckpt: Checkpoint, title: str) -> HeatMap | None:
    """Return the heat map; None for a checkpoint without tensors. Without values it shows which tensors there are."""
    stats = ckpt.values_read.tensors if ckpt.values_read is not None else {}
    return draw_layer_map(
        title,
        "Each cell is a tensor, coloured by its largest magnitude. Framed cells have findings: a click leads there.",
        {name: _draw_tensor(name, each) for name, each in stats.items()},
        STATES,
        value_label="largest magnitude",
        grid=place_tensors(ckpt),
        fill=lambda _: NOT_READ,
    )


def _draw_tensor(name: str, stats: TensorStats) -> HeatCell:
    if stats.nan or stats.inf:
        elements = " and ".join(text for text in (f"{stats.nan:,} NaN", f"{stats.inf:,} Inf") if text[0] != "0")
        return HeatCell(stats.absmax, "NaN or Inf", f"{elements}; {_describe(stats)}", name)
    if stats.zero:
        return HeatCell(None, "zero", _describe(stats), name)
    if stats.dtype not in PLAIN:
        return HeatCell(None, "packed", "", name)
    if stats.constant and stats.shape not in ((), (1,)):
        return HeatCell(stats.absmax, "constant", _describe(stats), name)
    return HeatCell(stats.absmax, name=name)


def _describe(stats: TensorStats) -> str:
    return f"{stats.dtype} {format_shape(stats.shape)}"
