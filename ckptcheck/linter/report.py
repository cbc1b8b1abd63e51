"""The report on one target: findings, the outcome of every rule, and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.late_import import load_function
from ckptcheck.linter.rule import SEVERITIES, Finding, Rule, Severity
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture
else:
    Picture = Any  # help() evaluates the annotations of a struct

SCHEMA = "ckptcheck-report/1"
SCHEMA_OF_SEVERAL = "ckptcheck-reports/1"
NOTEBOOK = "ckptcheck.reporters.html.page:render_fragment"
"""The function that shows reports in a notebook, named as text because a report must not import a reporter."""
PAGE, TEXT = "ckptcheck.reporters.html.page:render", "ckptcheck.reporters.text:render"
"""The functions that write reports as a page and as text."""
Reading = Mapping[str, str | int | list[str]]
"""What ckptcheck read of a target: label → a text, a number, or a list of texts. A report begins with it."""
Cell = str | int | float | None
Verdict = Literal["clean", "findings", "incomplete"]
FailOn = Literal["error", "warning", "info", "never"]


class Section(msgspec.Struct, frozen=True):
    """Measurements beside the findings: a table, lines, or both. They do not affect the verdict; rules do."""

    title: str
    columns: tuple[str, ...] = ()
    """Names of the table's columns."""
    rows: tuple[tuple[Cell, ...], ...] = ()
    """Numbers are not rounded; None stands for an empty cell."""
    lines: tuple[str, ...] = ()
    """Printed unchanged, so that commands can be copied."""
    brief: tuple[str, ...] = ()
    """Printed in place of a table that is too long to read, unless -v is given; the JSON form has the table."""
    shorter: Section | None = None
    """A table that is printed in place of this one, unless -v is given; the JSON form has this one."""
    is_idle: bool = False
    """Whether it only confirms that there is nothing to see: text shows it with -v alone, a page not; the JSON form has it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        whole: dict[str, Any] = {"title": self.title}
        if self.columns:
            whole |= {"columns": list(self.columns), "rows": [[*map(_finite, row)] for row in self.rows]}
        return whole | ({"lines": list(self.lines)} if self.lines else {})


UNCOMPARED = frozenset({"unread", "headline", "next_step", "parts", "pictures", "rules", "fail_on"})
"""Fields of a report in which equal reports may differ."""


class Report(msgspec.Struct, frozen=True, eq=False):
    """Findings and the outcome of every rule that applied. Iterates over its findings.

    ``print`` writes it as the command does. A report is always true, also one with errors: ask its `verdict` or `exit_code()`.
    """

    target: str
    """The target as the user wrote it."""
    subject: str = ""
    """One line that describes the target; "" if unknown."""
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    """Codes of rules that ran and found nothing."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(code, reason) of rules that applied but could not check, or were ignored by the user."""
    crashed: tuple[tuple[str, str], ...] = ()
    """(code, error) of rules that failed or could not read their evidence; one makes the verdict incomplete."""
    error: str | None = None
    """Why the target could not be checked, or not all of it; else None."""
    unread: tuple[str, ...] = ()
    """Files that could not be read: `error` says why, and rules that needed them repeat it; not part of the JSON form."""
    known: int = 0
    """Number of findings that a baseline covers; they are not among `findings`."""
    counts: Mapping[str, int] = msgspec.field(default_factory=lambda: {"files": 0, "tensors": 0, "bytes": 0})
    """Files, tensors and bytes of tensor data that were checked."""
    consumers: tuple[Mapping[str, Any], ...] = ()
    """One row per consumer that the user named: how it loads the checkpoint; () if the user named none."""
    sections: tuple[Section, ...] = ()
    """Measurements for the reader."""
    read: Reading = {}
    """What ckptcheck read of the target, if that may be less than all: label → text, number or list."""
    identities: Mapping[str, str] = {}
    """Label → identity of a set of weights (64 hexadecimal digits), if it was computed."""
    headline: str = ""
    """One sentence that says what a clean verdict means; "" for none. Not part of the JSON form; saved with pictures."""
    next_step: str = ""
    """A command that fits after this verdict, and what it does; "" for none. Not part of the JSON form."""
    parts: tuple[str, ...] = ()
    """Labels of the reports before this one, if it sums them up: a text shows it first, and of them what was found. Not part of
    the JSON form."""
    pictures: tuple[Picture, ...] = ()
    """Pictures for the HTML form, drawn only if the user asks for them; not part of the JSON form."""
    rules: tuple[Rule, ...] = ()
    """All rules that were loaded, for reporters that describe them; not part of the JSON form."""
    fail_on: FailOn = "error"
    """The lightest severity that counts as failure, as the settings say; not part of the JSON form."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        compared = (name for name in self.__struct_fields__ if name not in UNCOMPARED)
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct has a comparison of its own

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        numbers = [count(number, severity) for severity in SEVERITIES if (number := self.count(severity))]
        return f"<Report {self.target}: {', '.join([self.verdict, *numbers, f'{len(self.passed)} passed'])}>"

    def __str__(self) -> str:
        return _write(TEXT, [self])

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def to_html(self) -> str:
        """Return the page that ``--format html`` writes; with pictures where the verb was called with ``pictures=True``."""
        return _write(PAGE, [self])

    @property
    def verdict(self) -> Verdict:
        """The verdict: incomplete takes precedence over findings, findings over clean."""
        if self.crashed or self.error:
            return "incomplete"
        return "findings" if self.findings else "clean"

    def other_reasons(self, outcomes: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return the skipped or crashed rules with a reason other than `error`, which reporters print only once."""
        return tuple((code, reason) for code, reason in outcomes if not (self.unread and reason == self.error))

    def count(self, severity: Severity) -> int:
        """Return the number of findings of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, fail_on: FailOn | None = None) -> int:
        """0 clean, 1 findings at or above `fail_on` (None: as the settings say), 2 could not check; 2 wins over 1."""
        fail_on = fail_on or self.fail_on
        if self.verdict == "incomplete":
            return 2
        if fail_on == "never":
            return 0
        grave = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
        return int(any(finding.severity in grave for finding in self.findings))

    def raise_for_findings(self, fail_on: FailOn | None = None) -> None:
        """Raise for a report that does not pass.

        fail_on: the lightest severity that fails; None: as the settings say, by default error. Raises `FindingsError` for such
        findings, and CkptcheckError for an incomplete report: then something could not be checked.
        """
        _raise_for_findings(self, self.findings, self._incomplete_reason(), fail_on)

    def _incomplete_reason(self) -> str:
        """Say what could not be checked, or ""."""
        reasons = [self.error] if self.error else [f"{code}: {error}" for code, error in self.crashed]
        return f"{self.target} could not be checked: {reasons[0]}" if self.verdict == "incomplete" else ""

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        return _show_in_notebook([self])

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON form (``ckptcheck/reporters/report.schema.json``)."""
        from ckptcheck import __version__

        result: dict[str, Any] = {
            "schema": SCHEMA,
            "version": __version__,
            "target": self.target,
            **({"read": dict(self.read)} if self.read else {}),
            **({"identity": dict(self.identities)} if self.identities else {}),
            "verdict": self.verdict,
            "findings": [
                {key: getattr(finding, key) for key in ("code", "name", "severity", "message", "file", "key", "hint")}
                | ({"line": finding.line} if finding.line else {})
                | ({"names": list(finding.names)} if finding.names else {})
                for finding in self.findings
            ],
            "passed": list(self.passed),
            "skipped": [{"code": code, "reason": reason} for code, reason in self.skipped],
            "crashed": [{"code": code, "error": error} for code, error in self.crashed],
            "counts": {**{severity: self.count(severity) for severity in SEVERITIES}, **self.counts},
            "known": self.known,
        }
        if self.subject:
            result["subject"] = self.subject
        if self.consumers:
            result["consumers"] = [dict(row) for row in self.consumers]
        if self.sections:
            result["sections"] = [section.to_dict() for section in self.sections]
        return result | ({"error": self.error} if self.error else {})


class Reports(msgspec.Struct, frozen=True):
    """The reports of one target or several, in their order. Behaves as one report, and as a sequence of reports.

    If there is exactly one report, it has all of that report's attributes. It is true whatever the verdict.
    """

    reports: tuple[Report, ...]

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the only report. Raises AttributeError if there is none, or several."""
        if name in Report.__struct_fields__ or (not name.startswith("_") and hasattr(Report, name)):
            if len(self.reports) == 1:
                return getattr(self.reports[0], name)
            raise AttributeError(f"{len(self.reports)} reports have a {name} each: take one of them")
        raise AttributeError(f"reports have no {name}")

    def __repr__(self) -> str:
        return f"<Reports {', '.join(map(repr, self.reports))}>"

    def __str__(self) -> str:
        return _write(TEXT, self.reports)

    def to_html(self) -> str:
        """Return the page that ``--format html`` writes."""
        return _write(PAGE, self.reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def __getitem__(self, index: int) -> Report:
        return self.reports[index]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all reports."""
        return tuple(finding for report in self.reports for finding in report.findings)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of all reports."""
        return tuple(section for report in self.reports for section in report.sections)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict: incomplete wins over findings, findings over clean."""
        verdicts: set[Verdict] = {report.verdict for report in self.reports}
        return "incomplete" if "incomplete" in verdicts else "findings" if "findings" in verdicts else "clean"

    def exit_code(self, fail_on: FailOn | None = None) -> int:
        """Return the largest exit code, see `Report.exit_code`."""
        return max(report.exit_code(fail_on) for report in self.reports)

    def raise_for_findings(self, fail_on: FailOn | None = None) -> None:
        """Raise for reports that do not pass, see `Report.raise_for_findings`."""
        reason = next(filter(None, (report._incomplete_reason() for report in self.reports)), "")
        _raise_for_findings(self, self.findings, reason, fail_on)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON form: the one report, or for several the same keys for all of them, and ``reports``."""
        return reports_to_dict(self.reports)

    def _repr_html_(self) -> str:
        """Return the reports as a notebook shows them."""
        return _show_in_notebook(self.reports)


def reports_to_dict(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the documented JSON form of one report, or of several: they share the keys that decide about a job."""
    dicts = [report.to_dict() for report in reports]
    if len(dicts) == 1:
        return dicts[0]
    verdicts = [form["verdict"] for form in dicts]
    not_passed = {row["code"] for form in dicts for key in ("findings", "skipped", "crashed") for row in form[key]}
    passed = dict.fromkeys(code for report in reports for code in report.passed if code not in not_passed)
    numbers = dict.fromkeys(name for form in dicts for name in form["counts"])
    return {
        "schema": SCHEMA_OF_SEVERAL,
        "verdict": next((each for each in ("incomplete", "findings") if each in verdicts), "clean"),
        **{
            key: [row | {"target": form["target"]} for form in dicts for row in form[key]]
            for key in ("findings", "skipped", "crashed")
        },
        "passed": list(passed),
        "counts": {name: sum(form["counts"].get(name, 0) for form in dicts) for name in numbers},
        "known": sum(report.known for report in reports),
        "reports": dicts,
    }


class FindingsError(Exception):
    """A report has findings, see `Report.raise_for_findings`. `report` is that report."""

    def __init__(self, message: str, report: Report | Reports) -> None:
        super().__init__(message)
        self.report = report


def only_informs(report: Report) -> bool:
    """Whether all that was found is unusual but legal."""
    return report.verdict == "findings" and report.count("info") == len(report.findings)


def _raise_for_findings(
    report: Report | Reports, findings: tuple[Finding, ...], incomplete_reason: str, fail_on: FailOn | None
) -> None:
    code = report.exit_code(fail_on)
    if code == 2:
        raise CkptcheckError(incomplete_reason)
    if code == 1:
        first = min(findings, key=lambda finding: SEVERITIES.index(finding.severity))
        more = f" and {len(findings) - 1:,} more" if len(findings) > 1 else ""
        place = f"{first.place}: " if first.place else ""
        raise FindingsError(f"{first.severity} {first.code} {first.name}: {place}{first.message}{more}", report)


def _write(function: str, reports: Sequence[Report]) -> str:
    write: Callable[[Sequence[Report], Sequence[Rule]], str] = load_function(function)
    return write(reports, reports[0].rules if reports else ())


def _show_in_notebook(reports: Sequence[Report]) -> str:
    show: Callable[[Sequence[Report]], str] = load_function(NOTEBOOK)
    return show(reports)


def describe_reading(report: Report) -> list[tuple[str, str]]:
    """Return (label, text) for what was read of a target, lists joined by commas, and for the identities of weights."""
    read = [
        (
            label,
            ", ".join(value) or "none"
            if isinstance(value, list)
            else f"{value:,}"
            if isinstance(value, int)
            else value,
        )
        for label, value in report.read.items()
    ]
    labels: dict[str, list[str]] = {}
    for label, identity in report.identities.items():
        labels.setdefault(identity, []).append(label)
    return read + [(f"identity of the {' and the '.join(equal)}", identity) for identity, equal in labels.items()]


def _finite(cell: Cell) -> Cell:
    """Return NaN and infinity as text, since JSON cannot express them."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def add_cluster_notes(report: Report, notes: Sequence[str]) -> Report:
    """Add sentences about events in the cluster that did the work; return the report unchanged if there are none."""
    return (
        structs.replace(report, sections=(*report.sections, Section("Cluster", lines=tuple(notes))))
        if notes
        else report
    )
