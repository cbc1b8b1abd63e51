"""Draws several reports together: which rule found what in which, and the same picture of each, small, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Picture, SmallMultiples, State
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
MOST_TITLES, MOST_PARTS = 4, 60
"""Pictures that are drawn side by side, and of how many targets."""


def draw_overview(reports: Sequence[Report]) -> tuple[Picture, ...]:
    """Return the pictures of all reports together; () for one report."""
    if len(reports) < 2:
        return ()
    return (*filter(None, [_draw_rules(reports)]), *_list_multiples(reports))


def _list_multiples(reports: Sequence[Report]) -> list[SmallMultiples]:
    """Return the pictures that several reports have under one title."""
    places: dict[str, list[tuple[str, int, int]]] = {}
    for at, report in enumerate(reports):
        for number, picture in enumerate(report.pictures):
            if isinstance(picture, HeatMap | Curves):
                places.setdefault(picture.title, []).append((str(report.target), at, number))
    shared = {title: parts for title, parts in places.items() if len(parts) > 1}
    multiples = []
    for title, parts in list(shared.items())[:MOST_TITLES]:
        caption = (
            "The same picture of each report, small, with one scale for all. A click on a name goes to the large one."
        )
        if len(parts) > MOST_PARTS:
            caption += f" {count(len(parts) - MOST_PARTS, 'further report')} are not drawn."
        multiples.append(SmallMultiples(f"{title}, side by side", caption, tuple(parts[:MOST_PARTS])))
    return multiples


def _draw_rules(reports: Sequence[Report]) -> HeatMap | None:
    """Return rules × targets for the rules that found something or could not look; None where all is well."""
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
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        found.setdefault(str(finding.code), []).append(finding)
    for code, findings in found.items():
        gravest = min((finding.severity for finding in findings), key=SEVERITIES.index)
        states[code] = (gravest, f"{count(len(findings), 'finding')}: {findings[0].message}")
    return states
