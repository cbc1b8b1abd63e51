"""Draws several reports together: the findings of each rule in each report."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.linter.pictures import HeatCell, HeatMap, State
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import SEVERITIES, Finding
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


def draw_overview(reports: Sequence[Report]) -> HeatMap | None:
    """Return rules × targets for rules that found something or could not look; None without one, or for one report."""
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
    """Return code → the state of the rule in this report, and the text beside it."""
    states = {str(code): ("passed", "") for code in report.passed}
    states |= {str(code): ("skipped", str(reason)) for code, reason in report.skipped}
    states |= {str(code): ("could not check", str(reason)) for code, reason in report.crashed}
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        found.setdefault(str(finding.code), []).append(finding)
    for code, findings in found.items():
        gravest = min((finding.severity for finding in findings), key=SEVERITIES.index)
        states[code] = (gravest, f"{count(len(findings), 'finding')}: {findings[0].message}")
    return states
