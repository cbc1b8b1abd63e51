"""Writes reports in the formats that other programs read, and as a page for a browser; text for people is in text.py.

Every format is one file with ``render(reports, rules) -> str``, whose result ends with a newline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Rule

ReportFormat = Literal["text", "json", "json-with-pictures", "sarif", "junit", "github", "html"]
FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
WITH_PICTURES: tuple[ReportFormat, ...] = ("html", "json-with-pictures")
"""Formats for which pictures are made."""


def render(format: str, reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Write the reports in a format for machines; `rules` are the selected ones, in the order of the pack.

    It imports only the reporter of this format. Raises CkptcheckError for an unknown format.
    """
    if format == "json":
        from ckptcheck.reporters.json import render as write
    elif format == "json-with-pictures":
        from ckptcheck.reporters.json_with_pictures import render as write
    elif format == "sarif":
        from ckptcheck.reporters.sarif import render as write
    elif format == "junit":
        from ckptcheck.reporters.junit import render as write
    elif format == "github":
        from ckptcheck.reporters.github import render as write
    elif format == "html":
        from ckptcheck.reporters.html.page import render as write
    else:
        raise CkptcheckError(f"{format!r} is no report format for programs", hint=f"choose one of {', '.join(FORMATS)}")
    return write(reports, rules)
