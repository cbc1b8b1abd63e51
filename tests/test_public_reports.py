"""Public reports of checkpoints that loaded wrong or not at all, rebuilt small: the cause is named, the sound twin quiet.

tests/data/public_reports.toml is the log: one entry a report, with its address, what happened and what a scan says of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.factories.public_reports import REPORTS, PublicReport, build, scan


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.url.partition("github.com/")[2])
def test_the_cause_is_named_and_the_twin_is_quiet(report: PublicReport, tmp_path: Path) -> None:
    bad = scan(report, build(report, report.bad, tmp_path / "bad"))
    found = [f"{finding.code} {finding.message}" for finding in bad.findings]
    code, _, words = report.says.partition(" ")
    if report.says:
        assert any(text.startswith(f"{code} ") and words in text for text in found), found
    good = scan(report, build(report, report.good, tmp_path / "good"))
    assert not good.crashed
    assert [text.message for text in good.findings if text.severity == "error" or text.code == code] == []


def test_most_reports_are_caught() -> None:
    assert len(REPORTS) >= 40
    assert sum(bool(report.says) for report in REPORTS) >= 32
    assert all(bool(report.says) != bool(report.why_not) for report in REPORTS)
