"""Pictures as SVG files, without a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.dom import minidom

import pytest
from msgspec import structs

import ckptcheck
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Histogram, NoPicture, Picture, Series, State, TextTable
from ckptcheck.reporters import render
from ckptcheck.reporters.html import page
from ckptcheck.reporters.html.static_svg import PATTERNS, draw_svg
from tests.factories.pictures import DRAWN, HOSTILE, MODULES, PICTURES
from tests.factories.verb_reports import report_every_verb

GREEN, RED = State("equal", "good"), State("wrong", "bad")


def parse(picture: Picture) -> minidom.Element:
    svg = draw_svg(picture)
    assert svg is not None
    element = minidom.parseString(svg).documentElement
    assert element is not None
    return element


def list_values(element: minidom.Element, tag: str, attribute: str) -> list[str]:
    return [each.getAttribute(attribute) for each in element.getElementsByTagName(tag)]


def list_texts(element: minidom.Element) -> list[str]:
    return [each.firstChild.data if each.firstChild else "" for each in element.getElementsByTagName("text")]  # type: ignore[attr-defined]


def trace_lines(element: minidom.Element) -> list[str]:
    """Return the lines of a chart and their samples in the legend, without grid and patterns."""
    paths = element.getElementsByTagName("path")
    return [path.getAttribute("d") for path in paths if path.getAttribute("stroke-width") == "1.8"]


def test_a_heat_map_has_a_rectangle_for_each_cell_and_a_pattern_for_what_is_wrong() -> None:
    cells = {(0, 0): HeatCell(state="equal"), (0, 1): HeatCell(state="wrong"), (1, 1): HeatCell(state="equal")}
    svg = parse(HeatMap("Title", "Caption.", ("up", "down"), ("0", "1"), cells, (GREEN, RED)))
    fills = list_values(svg, "rect", "fill")
    # the paper, two swatches of the legend, three cells
    assert fills.count("#7fb8a4") == 1 + 2
    assert fills.count("#c63d17") == fills.count("url(#bad)") == 1 + 1
    assert {"Title", "Caption.", "up", "down", "0", "1", "equal (2)", "wrong (1)"} <= set(list_texts(svg))


def test_cells_without_a_state_have_the_colours_of_their_values() -> None:
    cells = {(0, at): HeatCell(10.0**at) for at in range(3)}
    fills = list_values(parse(HeatMap("t", "", ("r",), ("0", "1", "2"), cells, value_label="size")), "rect", "fill")
    assert fills[-3:] == ["#00204d", fills[-2], "#ffea46"]
    assert fills[-2] not in ("#00204d", "#ffea46")


def test_a_cell_of_several_shows_the_gravest_and_the_median() -> None:
    members = {"0": HeatCell(1.0, "equal"), "1": HeatCell(2.0, "wrong")}
    picture = HeatMap("t", "", ("r",), ("0",), {(0, 0): HeatCell(members=members)}, (GREEN, RED), "size")
    assert list_values(parse(picture), "rect", "fill")[-2:] == ["#c63d17", "url(#bad)"]
    calm = replace(picture, cells={(0, 0): HeatCell(members={"0": members["0"], "1": HeatCell(4.0, "equal")})})
    assert list_values(parse(calm), "rect", "fill")[-1].startswith("#")


def test_a_gap_ends_a_line_and_a_lone_point_is_a_dot() -> None:
    curves = Curves("t", "", (0, 1, 2, 3, 4), (Series("a", (1.0, 2.0, None, 3.0, None)),))
    svg = parse(curves)
    (sample, line) = sorted(trace_lines(svg))
    assert (sample, line.count("L")) == ("M1 6H25", 1)
    assert len(svg.getElementsByTagName("circle")) == 1 + 1  # and one in a pattern


def test_steps_go_sideways_and_marks_are_written() -> None:
    svg = parse(next(each for each in PICTURES if each.title == "Norms"))
    assert "outlier" in list_texts(svg)
    assert {*MODULES} <= set(list_texts(svg))
    ladder = replace(
        next(each for each in PICTURES if each.title == "Ladder"), series=(Series("KL", (0.1, 0.01, 0.001)),)
    )  # type: ignore[type-var]
    assert any(path.count("H") == path.count("V") == 2 for path in trace_lines(parse(ladder)))


def test_a_histogram_reaches_from_its_first_edge_to_its_last() -> None:
    svg = parse(next(each for each in PICTURES if isinstance(each, Histogram)))
    assert [line.count("H") for line in trace_lines(svg) if line != "M1 6H25"] == [3, 3]
    assert {"0", "0.1", "0.2", "0.4", "trainer", "engine"} <= set(list_texts(svg))


def test_what_is_no_drawing_has_no_file() -> None:
    assert draw_svg(NoPicture("t", "why")) is None
    assert draw_svg(TextTable("t", "", ("a",), ())) is None
    assert draw_svg(Curves("t", "", (), ())) is None


def test_the_pictures_of_every_verb_are_files_that_say_nothing_but_text(tmp_path: Path) -> None:
    for report in (DRAWN, *report_every_verb(tmp_path).values()):
        for picture in report.pictures:
            svg = draw_svg(picture)
            assert (svg is None) == isinstance(picture, NoPicture | TextTable)
            if svg is not None:
                tags = {each.tagName for each in minidom.parseString(svg).getElementsByTagName("*")}
                assert tags <= {"svg", "title", "defs", "pattern", "g", "rect", "path", "circle", "text"}
                assert "\u202e" not in svg
                assert svg == draw_svg(picture)


def test_every_tone_that_is_not_calm_has_a_pattern() -> None:
    assert set(PATTERNS) == {"notice", "change", "warn", "bad", "gone"}


@pytest.mark.parametrize("number", [1, 2])
def test_report_writes_the_pictures_of_saved_reports(tmp_path: Path, number: int) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(render("json-with-pictures", [DRAWN] * number, ()), encoding="utf-8")
    ckptcheck.write_page(saved, tmp_path / "page.html", svg=tmp_path / "pictures")
    names = ["differences.svg", "ladder.svg", "layers-and-modules.svg", "norms.svg"]
    expected = names if number == 1 else sorted(f"{at}-{name}" for at in (1, 2) for name in names)
    files = sorted((tmp_path / "pictures").iterdir())
    assert [file.name for file in files] == expected
    assert all(HOSTILE not in file.read_text(encoding="utf-8") for file in files)


def test_a_saved_report_asks_for_so_many_cells_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent cells take no bytes in a saved report, and are looked at one by one."""
    monkeypatch.setattr(page, "MOST_CELLS", 10)
    maps = tuple(HeatMap(name, "", ("r",) * 3, ("0",) * 3, {}) for name in ("one", "two"))
    saved = tmp_path / "saved.json"
    saved.write_text(render("json-with-pictures", [structs.replace(DRAWN, pictures=maps)], ()), encoding="utf-8")
    ckptcheck.write_page(saved, tmp_path / "page.html", svg=tmp_path / "pictures")
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["one.svg"]
