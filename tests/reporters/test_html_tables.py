"""The tables that a browser without scripts shows instead of pictures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptcheck.linter.pictures import (
    AlikeCells,
    Curves,
    HeatCell,
    HeatMap,
    Histogram,
    NoPicture,
    Picture,
    State,
    TextTable,
)
from ckptcheck.reporters.html.encode import NameTable, encode_picture
from ckptcheck.reporters.html.tables import MOST_LINES, PictureTable, tabulate
from tests.factories.pictures import DRAWN, HOSTILE, MODULES, make_heat_map


def table_of(kind: type[Picture], title: str = "") -> PictureTable:
    picture = next(each for each in DRAWN.pictures if isinstance(each, kind) and title in each.title)
    table = tabulate(picture)
    assert table is not None
    assert all(len(row) == len(table.columns) for row in table.rows)
    return table


def test_the_gravest_cells_come_first_and_the_rest_is_counted() -> None:
    table = table_of(HeatMap)
    assert table.columns == ("module", "layer", "largest magnitude", "state", "note")
    states = [row[3] for row in table.rows]
    assert states == sorted(states, key=["gone", "wrong", "stale", "cast", "equal"].index)
    assert (HOSTILE, "0", 3.0, "wrong", "its note") in table.rows
    assert len(table.rows) == MOST_LINES
    assert table.left_out == 3 * 24 + 4 * 24 + 1 - MOST_LINES
    assert "wrong" in table.summary


def test_each_expert_has_a_row() -> None:
    table = tabulate(replace(make_heat_map(layers=1, experts=2), states=()))
    assert table is not None
    assert (
        "mlp.experts.*.up_proj, expert 1",
        "0",
        1.5,
        "equal",
        "model.layers.0.mlp.experts.1.up_proj.weight",
    ) in table.rows


@pytest.mark.parametrize("labels", [range(3), range(5, 50), ("0", "01"), ("a", "b"), (7, "rank 1")])
@pytest.mark.parametrize(
    "around", [("h.1.experts.", ".up"), ("h.1.experts", ".up"), ("h.9.experts.", ".up"), ("h.1.", ".2.up")]
)
@pytest.mark.parametrize("cell", [HeatCell(state="quiet"), HeatCell(0.25, "bad", "its note"), HeatCell(7.0)])
def test_members_that_are_alike_look_like_members_one_by_one(
    labels: tuple[object, ...], around: tuple[str, str], cell: HeatCell
) -> None:
    alike = AlikeCells(dict.fromkeys(map(str, labels)), cell, *around)
    states = (State("quiet", "quiet"), State("bad", "bad"))
    pictures = [
        HeatMap("Title", "", ("a", "b"), ("0", "1"), {(0, 1): HeatCell(members=members), (1, 0): cell}, states)
        for members in (alike, dict(alike))
    ]
    assert tabulate(pictures[0]) == tabulate(pictures[1])
    tables = NameTable(), NameTable()
    first, second = (encode_picture(picture, table) for picture, table in zip(pictures, tables, strict=True))
    assert (first, tables[0].to_json()) == (second, tables[1].to_json())


def test_a_line_says_its_range_and_its_marks() -> None:
    assert table_of(Curves, "Norms").rows[0] == (
        MODULES[0], "1 (layer 0)", "1 (layer 0)", "3.3 (layer 23)", "3.3 (layer 23)", "outlier (6)",
    )  # fmt: skip
    assert table_of(Curves, "Ladder").rows == (
        ("KL", "0.1 (at as is)", "0.001 (at same batch)", "0.1 (at as is)", "0.001 (at same batch)", ""),
    )


def test_bins_and_texts_are_rows() -> None:
    assert table_of(Histogram).rows[1] == ("0.1 to 0.2", 9.0, 2.0)
    assert table_of(TextTable).rows == ((HOSTILE, "equal · 1 · job.yaml:3", "wrong · 2"),)


def test_a_reason_why_there_is_no_picture_needs_no_table() -> None:
    assert tabulate(NoPicture("Title", "why")) is None
