"""What a run over one target came to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ckptcheck.rule import SEVERITIES, Finding, Severity

SCHEMA = "ckptcheck-report/1"
Cell = str | int | float | None
Verdict = Literal["clean", "findings", "incomplete"]
FailOn = Literal["error", "warning", "info", "never"]


@dataclass(frozen=True)
class Section:
    """What was measured, told beside the findings: a table, lines, or both. It decides nothing; rules do.

    columns: names of the table's columns; numbers stand in unrounded, None where a cell has none. lines: printed as they are,
    so that commands can be copied. brief: what is printed in place of a table that is too long to be read, unless -v is given;
    the JSON form has the table.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    lines: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        whole: dict[str, Any] = {"title": self.title}
        if self.columns:
            whole |= {"columns": list(self.columns), "rows": [[*map(_finite, row)] for row in self.rows]}
        return whole | ({"lines": list(self.lines)} if self.lines else {})


@dataclass(frozen=True)
class Report:
    """Findings and the fate of every rule that applied.

    subject: one line that says what was looked at; "" where that is not known.
    passed: codes that ran and found nothing. skipped: applied, but could not or was told not to look (reason).
    crashed: a rule that failed, or could not read its evidence (error); makes the verdict incomplete.
    error: why the target could not be opened at all, else None.
    known: findings that a baseline covers; they are not among `findings`.
    counts: files, tensors and bytes (of tensor data) looked at.
    consumers: what each consumer that the user named makes of it, a row for each; () where none was named.
    sections: what was measured, for the reader.
    """

    target: str
    subject: str = ""
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    crashed: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    known: int = 0
    counts: Mapping[str, int] = field(default_factory=lambda: {"files": 0, "tensors": 0, "bytes": 0})
    consumers: tuple[Mapping[str, Any], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Incomplete wins over findings, findings over clean."""
        if self.crashed or self.error:
            return "incomplete"
        return "findings" if self.findings else "clean"

    def number(self, severity: Severity) -> int:
        """How many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def exit_code(self, fail_on: FailOn) -> int:
        """0 clean, 1 findings at or above `fail_on`, 2 could not check; 2 wins over 1."""
        if self.verdict == "incomplete":
            return 2
        if fail_on == "never":
            return 0
        grave = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
        return int(any(finding.severity in grave for finding in self.findings))

    def as_dict(self) -> dict[str, Any]:
        """Return the documented JSON form (``ckptcheck/reporters/report.schema.json``)."""
        from ckptcheck import __version__

        result: dict[str, Any] = {
            "schema": SCHEMA,
            "version": __version__,
            "target": self.target,
            "verdict": self.verdict,
            "findings": [
                {key: getattr(finding, key) for key in ("code", "name", "severity", "message", "file", "key", "hint")}
                | ({"line": finding.line} if finding.line else {})
                for finding in self.findings
            ],
            "passed": list(self.passed),
            "skipped": [{"code": code, "reason": reason} for code, reason in self.skipped],
            "crashed": [{"code": code, "error": error} for code, error in self.crashed],
            "counts": {**{severity: self.number(severity) for severity in SEVERITIES}, **self.counts},
            "known": self.known,
        }
        if self.subject:
            result["subject"] = self.subject
        if self.consumers:
            result["consumers"] = [dict(row) for row in self.consumers]
        if self.sections:
            result["sections"] = [section.as_dict() for section in self.sections]
        return result | ({"error": self.error} if self.error else {})


def _finite(cell: Cell) -> Cell:
    """JSON has no word for NaN and infinity, so they are told as text."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
