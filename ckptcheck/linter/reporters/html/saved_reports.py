"""Makes one page of saved reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.pictures import NoPicture
from ckptcheck.linter.report import Report
from ckptcheck.linter.reporters.html.page import render_page
from ckptcheck.linter.stored_report import HINT, read_reports

NOTHING_SAVED = NoPicture(
    "No pictures", "Nothing to draw was saved with this report; --format json-with-pictures keeps what pictures need."
)


def render_saved_reports(paths: Sequence[Path]) -> str:
    """Return the page. Raises CkptcheckError for a file that is no report, or none that a page can show."""
    reports: list[Report] = []
    for path in paths:
        loaded = read_reports(path)
        try:
            render_page(loaded)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
        reports += (report if report.pictures else replace(report, pictures=(NOTHING_SAVED,)) for report in loaded)
    page = render_page(reports, rule_loader.load_rules())
    return page.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair, which a file may say, is no text
