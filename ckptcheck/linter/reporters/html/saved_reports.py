"""Makes one page of saved reports, with a picture of which rule found what in which target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.pictures import HeatCell, HeatMap, State
from ckptcheck.linter.report import Report
from ckptcheck.linter.reporters.html.page import render_page
from ckptcheck.linter.rule import SEVERITIES
from ckptcheck.linter.stored_report import HINT, read_reports
from ckptcheck.text.formatting import count

STATES = (
    State("passed", "good"),
    State("skipped", "quiet"),
    State("info", "notice"),
    State("warning", "warn"),
    State("could not check", "gone"),
    State("error", "bad"),
)
MOST_RULES, MOST_TARGETS = 200, 1000


def render_saved_reports(paths: Sequence[Path]) -> str:
    """Return the page. Raises CkptcheckError for a file that is no report, or none that a page can show."""
    reports: list[Report] = []
    for path in paths:
        loaded = read_reports(path)
        try:
            render_page(loaded)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
        reports += loaded
    return render_page(reports, overview=tuple(filter(None, [_draw_overview(reports)])))


def _draw_overview(reports: Sequence[Report]) -> HeatMap | None:
    """Return rules × targets for the rules that found something or could not look; None for one report, or where all is well."""
    if len(reports) < 2:
        return None
    codes = sorted(
        {str(finding.code) for report in reports for finding in report.findings}
        | {str(code) for report in reports for code, _ in report.crashed}
    )[:MOST_RULES]
    if not codes:
        return None
    targets = reports[:MOST_TARGETS]
    cells: dict[tuple[int, int], HeatCell] = {}
    for column, report in enumerate(targets):
        states = _list_states(report)
        for row, code in enumerate(codes):
            if code in states:
                state, note = states[code]
                cells[row, column] = HeatCell(
                    state=state, note=f"{report.target}: {note}" if note else str(report.target)
                )
    numbers = tuple(str(number) for number in range(1, len(targets) + 1))
    caption = (
        "Each column is a target, in the order of the table, and each row a rule that found something in one of them."
    )
    return HeatMap(
        "Rules and targets", caption, tuple(codes), numbers, cells, STATES, row_label="rule", column_label="target"
    )


def _list_states(report: Report) -> dict[str, tuple[str, str]]:
    """Return code → the state of the rule in this report, and what the reader sees beside it."""
    states = {str(code): ("passed", "") for code in report.passed}
    states |= {str(code): ("skipped", str(reason)) for code, reason in report.skipped}
    states |= {str(code): ("could not check", str(reason)) for code, reason in report.crashed}
    for severity in reversed(SEVERITIES):
        for code in {finding.code for finding in report.findings if finding.severity == severity}:
            found = [finding for finding in report.findings if finding.code == code]
            states[str(code)] = (severity, f"{count(len(found), 'finding')}: {found[0].message}")
    return states
