"""Writes reports in the formats that other programs read, and as a page for a browser; text for people is in text.py.

Every format is one file with ``render(reports, rules) -> str``, whose result ends with a newline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.late_import import load_function
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Rule

ReportFormat = Literal["text", "json", "json-with-pictures", "sarif", "junit", "github", "html", "markdown"]
FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
WITH_PICTURES: tuple[ReportFormat, ...] = ("html", "json-with-pictures")
"""Formats for which pictures are made."""


def render(format: str, reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports in a format for machines; `rules` are the selected ones, in the order of the pack.

    It imports only the reporter of this format. Raises CkptcheckError for an unknown format.
    """
    if format == "text" or format not in FORMATS:
        raise CkptcheckError(f"{format!r} is no report format for programs", hint=f"choose one of {', '.join(FORMATS)}")
    module = "html.page" if format == "html" else format.replace("-", "_")
    written: str = load_function(f"ckptcheck.reporters.{module}:render")(reports, rules)
    return written
