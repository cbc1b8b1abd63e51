"""Draws a matrix as a heat map."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import HeatCell, HeatMap, NoPicture, State

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
    from ckptcheck.live.experiments.matrix.cells import Row
    from ckptcheck.live.experiments.matrix.trace import CellValue, MatrixTrace

STATES = (
    State("within the limit", "good"),
    State("beyond the limit", "bad"),
    State("not comparable", "gone", "nothing could be compared, or a logprob is not finite"),
)


def draw_matrix(trace: MatrixTrace, title: str) -> Picture:
    """Draw data, decoding, batch and layout × pair and length, with how far each cell is from perfect."""
    if not trace.values:
        return NoPicture(title, "no cell was measured")
    rows = list(dict.fromkeys(_label_row(row) for row in trace.table_rows))
    lengths = sorted({row.length for row in trace.table_rows})
    columns = [(pair, length) for pair in trace.pairs for length in lengths]
    cells = {
        (rows.index(_label_row(row)), columns.index((pair, row.length))): _describe_cell(trace, row, pair, value)
        for (row, pair), value in trace.values.items()
    }
    limit = trace.thresholds.mult_prob_error
    return HeatMap(
        title,
        f"Each cell is a measurement: mean exp|Δ| over its tokens, less 1, so that 0 is perfect. The limit is {limit - 1:.3g}.",
        tuple(rows),
        tuple(f"{length:,}" if len(trace.pairs) == 1 else f"{pair} {length:,}" for pair, length in columns),
        cells,
        STATES,
        "mult_prob_error − 1",
        "log",
        "set-up",
        "tokens" if len(trace.pairs) == 1 else "pair and tokens",
        codes=("PRB030",),
    )


def _label_row(row: Row) -> str:
    return f"{row.data}, {row.decoding}, batch {row.batch}{f', {row.layout}' if row.layout else ''}"


def _describe_cell(trace: MatrixTrace, row: Row, pair: str, value: CellValue) -> HeatCell:
    if not isfinite(value.error):
        return HeatCell(None, "not comparable")
    floor = (trace.floor_of(row, pair) or 1.0) - 1
    notes = [f"± {value.spread:.2g}", f"mean |Δ| {value.mean:.3g} nats over {value.tokens:,} tokens"]
    if floor > 0:
        notes.append(f"{(value.error - 1) / floor:.3g} times the floor")
    is_beyond = value.error > trace.thresholds.mult_prob_error
    return HeatCell(value.error - 1, STATES[is_beyond].name, ", ".join(notes))
