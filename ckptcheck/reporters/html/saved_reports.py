"""Makes one page of saved reports, and files of their pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.pictures import NoPicture
from ckptcheck.linter.report import Report
from ckptcheck.linter.stored_report import HINT, read_reports
from ckptcheck.reporters.html.page import limit_cells, render_page
from ckptcheck.reporters.html.static_svg import draw_svg

NOTHING_SAVED = NoPicture(
    "No pictures", "Nothing to draw was saved with this report; --format json-with-pictures keeps what pictures need."
)


NONSENSE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""The errors of drawing a stored report with values that no report of ckptcheck has."""


def render_saved_reports(paths: Sequence[Path]) -> str:
    """Return the page. Raises CkptcheckError for a file that is no report, or none that a page can show."""
    loaded = {path: read_reports(path) for path in paths}
    try:
        page = render_page(
            [
                report if report.pictures else structs.replace(report, pictures=(NOTHING_SAVED,))
                for reports in loaded.values()
                for report in reports
            ],
            rule_loader.load_rules(),
        )
    except NONSENSE as error:
        for path, reports in loaded.items():
            _require_drawable(path, reports)
        raise CkptcheckError(f"these reports make no page together: {error}", hint=HINT) from error
    return page.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair, which a file may hold, is no text


def draw_saved_pictures(paths: Sequence[Path]) -> dict[str, str]:
    """Return name of a file → picture as SVG, for the heat maps, curves and histograms of all reports. Raises CkptcheckError."""
    drawn: dict[str, str] = {}
    loaded = [(path, report) for path in paths for report in read_reports(path)]
    pictures = limit_cells([report.pictures for _, report in loaded])
    for number, (path, _) in enumerate(loaded, 1):
        for picture in pictures[number - 1]:
            try:
                svg = draw_svg(picture)
            except NONSENSE as error:
                raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
            name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")[:80]
            name = f"{number}-{name}" if len(loaded) > 1 else name
            if svg is not None:
                drawn[f"{name}.svg" if f"{name}.svg" not in drawn else f"{name}-{len(drawn)}.svg"] = svg
    return drawn


def _require_drawable(path: Path, reports: Sequence[Report]) -> None:
    """Raise CkptcheckError if no page can show the reports of a file."""
    try:
        render_page(reports)
    except NONSENSE as error:
        raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
