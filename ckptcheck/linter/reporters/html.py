"""The report as HTML, for notebooks: one self-contained fragment, without scripts and outside resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ckptcheck.linter.report import Cell, Report, Section, describe_reading
from ckptcheck.linter.reporters.printable import printable
from ckptcheck.linter.rule import SEVERITIES
from ckptcheck.text.formatting import count

COLOURS = {"error": "#c62828", "warning": "#b26a00", "info": "#00748f"}
VERDICT_COLOURS = {"clean": "#2e7d32", "findings": "#c62828", "incomplete": "#6a1b9a"}
MAX_ROWS = 50
"""Rows of a section's table; `Report.to_dict` has them all."""


def render_html(reports: Sequence[Report]) -> str:
    """Return an HTML fragment. Everything that comes from a checkpoint is escaped."""
    return "\n".join(_render_report(report) for report in reports)


def _render_report(report: Report) -> str:
    parts = [
        f'<div style="font-family:sans-serif"><b>{_text(report.target)}</b>',
        f'<div style="opacity:.7">{_text(report.subject)}</div>' if report.subject else "",
        _render_reading(report),
        _render_findings(report),
        *(_render_section(section) for section in report.sections),
        _render_table("consumers", tuple(report.consumers[0]), [tuple(row.values()) for row in report.consumers])
        if report.consumers
        else "",
        _render_verdict(report),
        "</div>",
    ]
    return "\n".join(part for part in parts if part)


def _render_reading(report: Report) -> str:
    rows = [f"<tr><td>{_text(label)}</td><td>{_text(text)}</td></tr>" for label, text in describe_reading(report)]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _render_findings(report: Report) -> str:
    rows = []
    for finding in report.findings:
        place = f'<div style="font-family:monospace">{_text(finding.place)}</div>' if finding.place else ""
        hint = f'<div style="color:#2e7d32">→ {_text(finding.hint)}</div>' if finding.hint else ""
        rows.append(
            f'<tr><td style="color:{COLOURS[finding.severity]};font-weight:bold">{finding.severity}</td>'
            f"<td><b>{_text(finding.code)}</b><br>{_text(finding.name)}</td>"
            f'<td style="text-align:left">{place}{_text(finding.message)}{hint}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _render_section(section: Section) -> str:
    table = _render_table(section.title, section.columns, section.rows) if section.columns else ""
    lines = f"<pre>{_text(chr(10).join(section.lines))}</pre>" if section.lines else ""
    title = "" if table else f"<div><b>{_text(section.title)}</b></div>"
    return title + table + lines


def _render_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(_cell(cell))}</td>' for cell in row)}</tr>" for row in rows[:MAX_ROWS])
    more = f"<div>… and {count(len(rows) - MAX_ROWS, 'more row')}</div>" if len(rows) > MAX_ROWS else ""
    return f"<table><caption>{_text(title)}</caption><tr>{head}</tr>{body}</table>{more}"


def _render_verdict(report: Report) -> str:
    counts = [count(report.count(severity), severity) for severity in SEVERITIES if report.count(severity)]
    counts += [f"{count(len(report.passed), 'rule')} passed"] if report.passed else []
    counts += [f"{count(len(report.skipped), 'rule')} skipped"] if report.skipped else []
    counts += [f"could not check {code}: {error}" for code, error in report.other_reasons(report.crashed)]
    counts += [report.error] if report.error else []
    text = " · ".join([report.verdict, *counts])
    return f'<div style="color:{VERDICT_COLOURS[report.verdict]}"><b>{_text(text)}</b></div>'


def _cell(cell: object) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else str(cell)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _text(text: str) -> str:
    """Escape control characters and markup. A newline stays."""
    return "\n".join(escape(printable(line)) for line in text.split("\n"))
