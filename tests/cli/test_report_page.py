"""``ckptcheck report``: one page of saved reports, and one sentence for a file that is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck import CkptcheckError
from tests.factories.sample_reports import CLEAN, CRASHED, FOUND, MEASURED


@pytest.fixture
def saved(tmp_path: Path) -> list[Path]:
    files = [tmp_path / "one.json", tmp_path / "several.json"]
    files[0].write_text(json.dumps(FOUND.to_dict()), encoding="utf-8")
    files[1].write_text(json.dumps([report.to_dict() for report in (CLEAN, CRASHED, MEASURED)]), encoding="utf-8")
    return files


def test_the_page_has_every_report_and_which_rule_found_what_in_which(saved: list[Path], tmp_path: Path) -> None:
    ckptcheck.write_page(saved, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for report in (FOUND, CLEAN, CRASHED, MEASURED):
        assert report.target in page
    assert page.count('<article class="report"') == 4
    assert "4 reports" in page
    assert "Rules and targets" in page
    assert '"rows":["ADP004","CFG002","IDX001","NUM003"]' in page


def test_one_report_needs_no_overview(saved: list[Path], tmp_path: Path) -> None:
    ckptcheck.write_page(saved[0], tmp_path / "page.html")
    assert "Rules and targets" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is no report of ckptcheck"),
        ("[]", "it holds no object with a report"),
        ('{"schema": "other/1"}', "it is no report of ckptcheck"),
        ("[" * 100_000, "is no report of ckptcheck"),
        (json.dumps(CLEAN.to_dict() | {"sections": [{"title": "t", "columns": 1}]}), "no report of ckptcheck"),
        (json.dumps(CLEAN.to_dict() | {"counts": {"files": []}, "read": {"x": {"y": 1}}, "passed": [[1]]}), ""),
    ],
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(CkptcheckError, match=r"bad\.json") as caught:
        ckptcheck.write_page(tmp_path / "bad.json", tmp_path / "page.html")
    assert reason in caught.value.message
    assert not (tmp_path / "page.html").exists()


def test_the_page_replaces_no_report(saved: list[Path]) -> None:
    with pytest.raises(CkptcheckError, match="would be overwritten"):
        ckptcheck.write_page(saved, saved[0])
