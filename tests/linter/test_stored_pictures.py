"""Pictures in a saved report: what is read is what was drawn, and anybody's file makes a page or a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import ckptcheck
from ckptcheck import CkptcheckError
from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, NoPicture, Picture, Series
from ckptcheck.linter.report import Report
from ckptcheck.linter.stored_pictures import load_picture, picture_to_json
from ckptcheck.linter.stored_report import read_reports
from ckptcheck.reporters import render
from ckptcheck.reporters.html import page as html_page
from ckptcheck.reporters.html import tables
from ckptcheck.reporters.html.page import draw_overview, render_page
from ckptcheck.reporters.html.saved_reports import render_saved_reports
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.pictures import DRAWN, PICTURES
from tests.factories.sample_reports import FOUND

SOUND = CHECKPOINTS / "tiny-llama"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.title)
def test_a_picture_comes_back_as_it_was(picture: Picture) -> None:
    assert load_picture(json.loads(json.dumps(picture_to_json(picture), allow_nan=False))) == picture


def test_numbers_that_are_not_finite_are_gaps() -> None:
    picture = HeatMap("t", "c", ("r",), ("0",), {(0, 0): HeatCell(float("nan"))})
    loaded = load_picture(picture_to_json(picture))
    assert isinstance(loaded, HeatMap)
    assert loaded.cells[0, 0].value is None


@pytest.mark.parametrize(
    "form",
    [
        None,
        {"kind": "Report"},
        {"kind": "HeatMap", "title": "t"},
        {"kind": "HeatMap", "title": "t", "caption": "", "rows": ["r"], "columns": ["c"], "cells": [[0, "x", {}]]},
        {"kind": "HeatMap", "title": "t", "caption": "", "rows": [""] * 3000, "columns": [""] * 3000, "cells": []},
        {"kind": "TextTable", "title": 3, "caption": "c", "columns": ["c"], "rows": "rows"},
    ],
)
def test_what_is_no_picture_says_so(form: Any) -> None:
    assert isinstance(load_picture(form), NoPicture)


def test_a_page_has_room_for_so_many_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent cells take no bytes in a saved report, and are drawn one by one."""
    monkeypatch.setattr(html_page, "MOST_CELLS", 100)
    pictures = tuple(HeatMap(name, "", ("r",) * 8, ("0",) * 8, {}, ()) for name in "abc")
    small = HeatMap("d", "", ("r",) * 4, ("0",) * 9, {}, ())
    one, two = html_page.limit_cells([pictures, (small, NoPicture("e", "none"), small)])
    assert [type(picture).__name__ for picture in (*one, *two)] == [
        "HeatMap", "NoPicture", "NoPicture", "HeatMap", "NoPicture", "NoPicture",
    ]  # fmt: skip
    assert one[1].caption == "it has 64 cells, and the page has room for 36 more"
    page = render_page([Report("x", pictures=pictures)])
    assert page.count("it has 64 cells, and the page has room for 36 more") >= 2


def test_each_line_and_finding_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of lines with thousands of marks, and of codes with thousands of findings, fit in a megabyte."""
    described: list[int] = []
    original = tables._describe_line

    def describe(picture: Curves, number: int) -> Any:
        described.append(number)
        return original(picture, number)

    monkeypatch.setattr(tables, "_describe_line", describe)
    lines = Curves("t", "c", (0,), (Series("a", (1.0,)),) * 100)
    table = tables.tabulate(lines)
    assert table is not None
    assert (len(table.rows), table.left_out, len(described)) == (tables.MOST_LINES, 100 - tables.MOST_LINES, 30)
    findings = [structs.replace(FOUND.findings[0], code=f"ABC{number % 3}", severity=severity)
                for number, severity in enumerate(["info", "error", "warning", "warning"] * 2)]  # fmt: skip
    states = html_page._list_states(structs.replace(FOUND, findings=tuple(findings)))
    assert {code: state for code, (state, _) in states.items() if code.startswith("ABC")} == {
        "ABC0": "warning", "ABC1": "error", "ABC2": "error",
    }  # fmt: skip
    assert states["ABC0"][1].startswith("3 findings: ")


def test_a_file_that_makes_no_page_is_named(tmp_path: Path) -> None:
    """The page of all files is drawn once; only where that fails is each file tried by itself."""
    sound, broken = tmp_path / "sound.json", tmp_path / "broken.json"
    sound.write_text(render("json-with-pictures", [ckptcheck.scan(SOUND, pictures=True)], ()), encoding="utf-8")
    form = json.loads(sound.read_text(encoding="utf-8"))
    form[0]["pictures"] = [picture_to_json(Curves("t", "c", (0,), (Series("a", (1.0, 2.0)),)))]
    broken.write_text(json.dumps(form), encoding="utf-8")
    with pytest.raises(CkptcheckError, match=r"broken\.json is no report of ckptcheck"):
        render_saved_reports([sound, broken])


def test_saved_scans_are_drawn_on_one_page(tmp_path: Path) -> None:
    files = []
    for name in ("tiny-llama", "tiny-qwen2-tied"):
        report = ckptcheck.scan(CHECKPOINTS / name, pictures=True)
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(render("json-with-pictures", [report], ()), encoding="utf-8")
        (loaded,) = read_reports(files[-1])
        assert loaded.pictures == report.pictures
        assert loaded.to_dict() == report.to_dict()
    files.append(tmp_path / "plain.json")
    files[-1].write_text(render("json", [FOUND], ()), encoding="utf-8")
    ckptcheck.write_page(files, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<h3>Values by layer</h3>") == 2
    assert "Nothing to draw was saved with this report" in page


def test_the_sentence_of_a_clean_report_is_saved_with_its_pictures(tmp_path: Path) -> None:
    file = tmp_path / "equal.json"
    file.write_text(render("json-with-pictures", [ckptcheck.diff(SOUND, SOUND, pictures=True)], ()), encoding="utf-8")
    assert "tensors are equal bit for bit" in read_reports(file)[0].headline
    file.write_text(file.read_text(encoding="utf-8").replace('"headline":"', '"headline":1,"was":"'), encoding="utf-8")
    with pytest.raises(CkptcheckError, match="its headline is no text"):
        read_reports(file)


def test_rules_by_targets_show_who_found_what() -> None:
    passed = structs.replace(
        DRAWN, findings=(), passed=("VAL001",), skipped=(("VAL006", "not read"),), crashed=(("VAL003", "odd"),)
    )
    picture = draw_overview([DRAWN, passed])
    assert isinstance(picture, HeatMap)
    assert (picture.rows, picture.columns) == (("VAL001", "VAL003", "VAL006"), ("1", "2"))
    states = [[picture.cells[row, column].state for column in range(2)] for row in range(3)]
    assert states == [["error", "passed"], ["info", "could not check"], ["warning", "skipped"]]
    assert picture.cells[0, 0].note.endswith("holds 3 NaN")
    assert picture.cells[2, 1].note.endswith(": not read")


def test_a_state_that_the_legend_lacks_is_a_sentence(tmp_path: Path) -> None:
    form = json.loads(render("json-with-pictures", [DRAWN], ()))
    form[0]["pictures"][0]["states"] = []
    (tmp_path / "bad.json").write_text(json.dumps(form), encoding="utf-8")
    with pytest.raises(CkptcheckError, match=r"bad\.json"):
        ckptcheck.write_page(tmp_path / "bad.json", tmp_path / "page.html")
