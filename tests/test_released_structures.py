"""Released models of all families: a scan of their headers finds no error, and sees what is taken from them or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.linter.report import Report
from tests.factories.released_structures import list_structures, load_structure, write_checkpoint

FALSE_ERRORS: dict[str, set[str]] = {}
"""Structure → codes of errors that are known to be false, until the rule is mended."""


def scan(folder: Path) -> Report:
    return ckptcheck.scan(folder, headers_only=True)


def errors(report: Report) -> list[str]:
    return [f"{finding.code} {finding.message}" for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("name", list_structures())
def test_a_released_model_has_no_error(name: str, tmp_path: Path) -> None:
    report = scan(write_checkpoint(load_structure(name), tmp_path))
    assert not report.crashed
    assert len(report.passed) >= 30
    assert {text.split()[0] for text in errors(report)} == FALSE_ERRORS.get(name, set()), errors(report)


def test_there_are_many_families() -> None:
    names = list_structures()
    assert len(names) >= 40
    assert len({load_structure(name).config["model_type"] for name in names}) >= 40
