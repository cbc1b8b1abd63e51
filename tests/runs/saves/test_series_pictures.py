"""From the saves of a run to pictures: which tensors moved, how far, and what the counters say."""

from __future__ import annotations

import pytest

from ckptcheck.linter.pictures import Curves, HeatMap, Picture
from ckptcheck.reporters.pictures.saves import draw_counters, draw_raster, draw_updates
from tests.factories.series_cases import build_series

UP, STILL = "layers.*.up.weight", "layers.1.q.weight"
SERIES = build_series(
    {
        "saves": [
            {"step": 10, "constant": [STILL]},
            {"step": 20, "constant": [STILL], "jump": {"layers.2.up.weight": 0.5}, "counters": {"steps": 20.0}},
            {"step": 30, "like": 20, "counters": {"steps": 20.0, "samples": 64.0}},
        ]
    }
)
(STRAND,) = SERIES.strands


def states_of(picture: Picture | None, row: str) -> list[str]:
    assert isinstance(picture, HeatMap)
    return [picture.cells[picture.rows.index(row), column].state for column in range(len(picture.columns))]


def test_a_raster_shows_what_moved_from_save_to_save() -> None:
    weights, moments = draw_raster(STRAND, "weights", "Weights"), draw_raster(STRAND, "states", "Moments")
    assert states_of(weights, "layers.0.up.weight") == ["not compared", "moved", "repeated"]
    assert states_of(weights, STILL) == ["not compared", "unchanged", "unchanged"]
    assert states_of(moments, "optim.layers.0.up.weight.exp_avg") == ["not compared", "moved", "moved"]
    assert isinstance(weights, HeatMap)
    assert isinstance(moments, HeatMap)
    assert not {*weights.rows} & {*moments.rows}
    assert weights.columns == ("10", "20", "30")


def test_how_far_a_kind_of_weight_moved_is_the_median_of_its_layers() -> None:
    curves = draw_updates(STRAND, "Updates")
    assert isinstance(curves, Curves)
    (line,) = [series for series in curves.series if series.name == UP]
    # one of four layers jumped by 0.5, the others moved by 0.01
    assert line.values == (pytest.approx(0.01, rel=0.2), 0.0)


def test_counters_stand_at_their_saves() -> None:
    curves = draw_counters(STRAND, "Counters")
    assert isinstance(curves, Curves)
    assert {series.name: series.values for series in curves.series} == {
        "samples": (None, None, 64.0), "steps": (None, 20.0, 20.0),
    }  # fmt: skip
    assert draw_counters(build_series({"saves": [{"step": 1}, {"step": 2}]}).strands[0], "Counters") is None
