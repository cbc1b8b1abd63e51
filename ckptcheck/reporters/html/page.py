"""Writes reports as one page: template, style, scripts and data in one file, and as a fragment for notebooks."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ckptcheck.linter.pictures import Curves, HeatCell, HeatMap, Histogram, NoPicture, Picture, State
from ckptcheck.linter.report import Cell, Report, describe_reading, only_informs
from ckptcheck.linter.rule import SEVERITIES, Finding, Rule
from ckptcheck.linter.stored_pictures import MOST_CELLS
from ckptcheck.reporters.html.encode import NameTable, encode_picture
from ckptcheck.reporters.html.tables import tabulate
from ckptcheck.reporters.printable import printable
from ckptcheck.reporters.runner_commands import HASHES
from ckptcheck.text.formatting import count, format_bytes

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SCRIPTS = ("base.js", "save.js", "heat_map.js", "lines.js", "text_table.js", "start.js")
"""In the order in which the browser reads them, as one script."""
UPLOT_SCRIPT, UPLOT_STYLE, UPLOT_LICENSE = (
    f"uplot/{name}" for name in ("uPlot.iife.min.js", "uPlot.min.css", "LICENSE")
)
"""A library that draws curves, as its authors publish it (fixtures/update_uplot.py). Only pages with curves carry its 50 KB."""
MOST_FINDINGS, MOST_ROWS, MOST_NAMES = 200, 200, 1000
"""Findings of one rule, rows of one table and names of one finding that a page shows; the JSON form has them all."""
POLICY = "base-uri 'none'; form-action 'none'"
MOST_ON_A_LINE = 24
"""If a text in a table of measurements has this many characters, its column may break lines."""
FRAGMENT_HEIGHT = 900
"""Pixels of the frame in which a notebook shows pictures."""


def render(reports: Sequence[Report], rules: Sequence[Rule]) -> str:
    """Return the page. The same reports give the same bytes."""
    return render_page(reports, rules)


def render_page(reports: Sequence[Report], rules: Sequence[Rule] = ()) -> str:
    """Return a page that opens from a disk or a mail: it has no address in it and asks for none."""
    from ckptcheck import __version__

    drawn = limit_cells([report.pictures for report in reports])
    reports = [structs.replace(report, pictures=pictures) for report, pictures in zip(reports, drawn, strict=True)]
    overview = [picture for picture in [draw_overview(reports)] if picture is not None]
    has_curves = any(isinstance(picture, Curves | Histogram) for report in reports for picture in report.pictures)
    script, style = _read_script(has_curves), _read_style(has_curves)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_make_title(reports),
            version=__version__,
            policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; {POLICY}",
            style=style,
            script=script,
            reports=_describe_reports(reports, rules),
            overview=[_describe_picture(picture, f"all-p{position}") for position, picture in enumerate(overview)],
            data=_encode_data([*reports, Report("", pictures=tuple(overview))]),
        )
    )


def limit_cells(reports: Sequence[Sequence[Picture]]) -> list[tuple[Picture, ...]]:
    """Return the pictures of some reports with the heat maps that have at most MOST_CELLS cells together, the first ones first.

    A few bytes of a saved report ask for millions of absent cells.
    """
    room = MOST_CELLS

    def limit(picture: Picture) -> Picture:
        nonlocal room
        if not isinstance(picture, HeatMap):
            return picture
        cells = len(picture.rows) * len(picture.columns)
        if cells > room:
            return NoPicture(picture.title, f"it has {cells:,} cells, and the page has room for {room:,} more")
        room -= cells
        return picture

    return [tuple(map(limit, pictures)) for pictures in reports]


def render_fragment(reports: Sequence[Report]) -> str:
    """Return the reports as a notebook shows them: text and tables; pictures in a frame that reaches nothing outside itself."""
    text = _environment().get_template("fragment.html.j2").render(reports=_describe_reports(reports, ()))
    if not any(report.pictures for report in reports):
        return text
    page = html.escape(render_page(reports), quote=True)
    size = f'width="100%" height="{FRAGMENT_HEIGHT}"'
    return f'{text}\n<iframe sandbox="allow-scripts allow-downloads" title="pictures" {size} srcdoc="{page}"></iframe>'


def _make_title(reports: Sequence[Report]) -> str:
    return reports[0].target if len(reports) == 1 else count(len(reports), "report")


def _describe_reports(reports: Sequence[Report], rules: Sequence[Rule]) -> list[dict[str, Any]]:
    names = {rule.code: rule for rule in (*rules, *(rule for report in reports for rule in report.rules))}
    return [_describe_report(report, number, names) for number, report in enumerate(reports, 1)]


def _describe_report(report: Report, number: int, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the values of a report that the template shows."""
    groups: dict[str, list[tuple[int, Any]]] = {}
    for position, finding in enumerate(report.findings):
        groups.setdefault(finding.code, []).append((position, finding))
    return {
        "id": number,
        "report": report,
        "anchor": f"r{number}",
        "verdict": report.verdict,
        "said": "no errors or warnings" if only_informs(report) else report.verdict,
        "sentence": _say_verdict(report),
        "reading": describe_reading(report),
        "counts": {severity: report.count(severity) for severity in SEVERITIES},
        "groups": [
            {
                "code": code,
                "name": entries[0][1].name,
                "severity": entries[0][1].severity,
                "summary": rules[code].summary if code in rules else "",
                "entries": entries[:MOST_FINDINGS],
                "more": max(len(entries) - MOST_FINDINGS, 0),
                "number": len(entries),
            }
            for code, entries in groups.items()
        ],
        "pictures": [
            _describe_picture(picture, f"r{number}-p{position}") for position, picture in enumerate(report.pictures)
        ],
        "consumer_rows": [tuple(row.values()) for row in report.consumers],
        "crashed": _group_by_reason(report.other_reasons(report.crashed)),
        "skipped": _group_by_reason(report.other_reasons(report.skipped)),
        "passed": [(code, rules[code].summary if code in rules else "") for code in report.passed],
    }


def _describe_picture(picture: Picture, anchor: str) -> dict[str, Any]:
    return {"anchor": anchor, "title": picture.title, "caption": picture.caption, "table": tabulate(picture)}


def _group_by_reason(outcomes: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return reason → the rules that it concerns."""
    reasons: dict[str, list[str]] = {}
    for code, reason in outcomes:
        reasons.setdefault(reason, []).append(code)
    return list(reasons.items())


def _say_verdict(report: Report) -> str:
    """Return the sentence at the top."""
    if report.verdict == "incomplete":
        return report.error or f"{count(len(report.crashed), 'rule')} could not be checked"
    if report.verdict == "clean":
        return report.headline or f"{count(len(report.passed), 'rule')} passed, and none found anything"
    graves = [
        count(number, severity, "info" if severity == "info" else None)
        for severity in SEVERITIES
        if (number := report.count(severity))
    ]
    return " · ".join(filter(None, (report.headline, ", ".join(graves))))


def _encode_data(reports: Sequence[Report]) -> str:
    """Return the data block: the pictures for the scripts, and the tensors of each finding. It contains no `<`."""
    names = NameTable()
    data: dict[str, Any] = {
        "reports": [
            {
                "pictures": [encode_picture(picture, names) for picture in report.pictures],
                "findings": [
                    {
                        "code": printable(str(finding.code)),
                        "names": [
                            names.encode(name)
                            for name in dict.fromkeys((*filter(None, (finding.key,)), *finding.names[:MOST_NAMES]))
                        ],
                    }
                    for finding in report.findings
                ]
                if report.pictures
                else [],
            }
            for report in reports
        ],
        "templates": [],
    }
    data["templates"] = names.to_json()
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return HASHES.sub(r"\\u0023", written)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(lambda name: _read(f"parts/{name}")),
        autoescape=True,
        optimized=False,  # the templates have no constants to fold, and searching for some takes a sixth of compiling them
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "show": _show_text,
        "cell": _show_cell,
        "count": count,
        "bytes": format_bytes,
        "column_classes": _list_column_classes,
    }
    environment.globals |= {"MOST_ROWS": MOST_ROWS, "trusted": Markup}
    return environment


def _show_text(text: object) -> Markup:
    """Return a text as markup without control characters; it keeps its lines.

    If a page goes to stdout, the runner of a CI reads it, and takes a line that begins with ``::`` for a command.
    """
    from markupsafe import Markup, escape

    shown = str(escape("\n".join(printable(line) for line in str(text).split("\n"))))
    return Markup(HASHES.sub("&#35;", shown.replace("::", "&#58;:")))


def _show_cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _show_text(printable(str(value)))


def _list_column_classes(rows: Sequence[Sequence[Cell]], columns: int) -> list[str]:
    """Return the attribute of each column's cells: columns of numbers stand at the right, and only long texts break lines."""
    from markupsafe import Markup

    numbers = {at for row in rows for at, value in enumerate(row) if isinstance(value, int | float)}
    words = {at for row in rows for at, value in enumerate(row) if len(str(value)) > MOST_ON_A_LINE}
    classes = [
        "number" if at in numbers else "words" if at in words else "" for at in range(max([columns, *map(len, rows)]))
    ]
    return [Markup(f' class="{name}"') if name else "" for name in classes]


@cache
def _read(name: str) -> str:
    return (files("ckptcheck.reporters.html") / name).read_text(encoding="utf-8")


@cache
def _read_script(has_curves: bool) -> str:
    library = f"/*\n{_read(UPLOT_LICENSE)}\n*/\n{_read(UPLOT_SCRIPT)}" if has_curves else ""
    palette = f"const PALETTE = {_read('parts/palette.json').strip()};\n"
    own = "\n".join(_read(f"parts/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{library}{palette}{own}\n}})();\n'


@cache
def _read_style(has_curves: bool) -> str:
    return (_read(UPLOT_STYLE) if has_curves else "") + _read("parts/page.css")


def _hash(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows one inlined text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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
