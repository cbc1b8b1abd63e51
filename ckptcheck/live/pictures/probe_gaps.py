"""Draws measurements of probes: gaps of logprobs, tokens that go to other experts, responses during updates."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Series, TextCell, TextTable
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult, InflightResponse
from ckptcheck.live.experiments.probes.routing import RoutingResult
from ckptcheck.live.experiments.probes.trace import list_tables

if TYPE_CHECKING:
    from ckptcheck.live.experiments.probes.trace import ProbeTrace

GAP = "|Δ|"
"""Columns of a probe's table with this in their name hold nats."""
GAP_RULES = ("PRB002", "PRB003", "PRB005", "PRB009", "PRB010", "PRB011", "PRB013")
"""Rules that judge a gap between two ways to compute the same tokens."""
UPDATE_RULES = ("PRB013", "PRB017")
"""Rules that judge a response during which the weights were updated."""


def draw_gaps(trace: ProbeTrace, title: str) -> HeatMap | None:
    """Draw comparison × kind of gap in nats, from the tables of all probes; None if no table has gaps."""
    rows: list[str] = []
    columns: list[str] = []
    cells: dict[tuple[int, int], HeatCell] = {}
    tables = [(probe, section) for probe, result in trace.results.items() for section in list_tables(result)]
    for probe, section in tables:
        gaps = {at: name for at, name in enumerate(section.columns) if GAP in name}
        for row in section.rows:
            values = {gaps[at]: value for at, value in enumerate(row) if at in gaps and isinstance(value, float | int)}
            if not any(map(isfinite, values.values())):
                continue
            labels = (value for at, value in enumerate(row) if isinstance(value, str) and at not in gaps)
            rows.append(f"{probe}: {', '.join(filter(None, labels))}")
            columns += [name for name in values if name not in columns]
            cells |= {
                (len(rows) - 1, columns.index(name)): HeatCell(float(value), note=section.title)
                for name, value in values.items()
            }
    if not cells:
        return None
    caption = "A row for each comparison of a probe, in nats of a token. The findings say which gap is too wide."
    return HeatMap(
        title,
        caption,
        tuple(rows),
        tuple(columns),
        cells,
        value_label="nats",
        codes=GAP_RULES,
        row_label="comparison",
        column_label="gap",
    )


def draw_rerouted_tokens(trace: ProbeTrace, title: str) -> Curves | None:
    """Draw the share of tokens that go to other experts, by layer; None if no probe measured it."""
    for result in trace.results.values():
        if isinstance(result, RoutingResult) and result.tokens and result.layers:
            shares = tuple(number / result.tokens for number in result.layers)
            caption = f"Of {result.tokens:,} tokens, the share that engine and trainer send to other experts."
            return Curves(
                title,
                caption,
                tuple(range(len(shares))),
                (Series("share of tokens", shares),),
                "layer of experts",
                codes=("PRB020",),
            )
    return None


def draw_updated_responses(trace: ProbeTrace, title: str) -> TextTable | None:
    """Draw the weight version of each token of a response; None if no update ran during a response."""
    for result in trace.results.values():
        if isinstance(result, InflightProbeResult) and result.responses:
            return TextTable(
                title,
                "One row for each way to pause: how many tokens the old and the new weights computed, by their logprobs.",
                ("pause", "old weights", "old or new", "new weights", "ended by", "new version reported from"),
                tuple(_draw_response(response) for response in result.responses),
                codes=UPDATE_RULES,
            )
    return None


def _draw_response(response: InflightResponse) -> tuple[TextCell, ...]:
    latest = response.tokens if response.changed is None else response.changed
    earliest = min(response.earliest, latest)
    lengths = (earliest, latest - earliest, response.tokens - latest)
    reported = "" if response.reported_from is None else f"token {response.reported_from}"
    texts = (response.pause_label, *(f"{length:,}" for length in lengths), response.finish or "", reported)
    return tuple(map(TextCell, texts))
