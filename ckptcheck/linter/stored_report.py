"""Reads reports from the JSON form in which they were written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import SCHEMA, SCHEMA_OF_SEVERAL, Report, Section
from ckptcheck.linter.rule import SEVERITIES, Finding
from ckptcheck.text.file_io import read_json_file

HINT = "--format json -o FILE writes one, --format json-with-pictures one with its pictures"
WITH_PICTURES = "ckptcheck-report-with-pictures/1"
"""The schema of an object with a report and its pictures, as ``--format json-with-pictures`` writes them."""


Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SkippedRule(msgspec.Struct):
    """A rule that could not check."""

    code: str
    reason: str


class CrashedRule(msgspec.Struct):
    """A rule that failed."""

    code: str
    error: str


class StoredConsumer(msgspec.Struct):
    """How a consumer loads the checkpoint."""

    consumer: str
    version: str
    files: Number | None
    quantized: Number | None
    plain: Number | None
    agrees: str


class StoredSection(msgspec.Struct):
    """Measurements."""

    title: str
    columns: list[str] = []
    rows: list[list[str | int | float | bool | None]] = []
    lines: list[str] = []


class StoredReport(msgspec.Struct):
    """The JSON form of a report. The file may be hostile, so the types admit only values that reporters can write."""

    target: str
    findings: list[Finding]
    passed: list[str]
    skipped: list[SkippedRule]
    crashed: list[CrashedRule]
    known: Number
    counts: dict[str, Number]
    subject: str = ""
    error: str | None = None
    consumers: list[StoredConsumer] = []
    sections: list[StoredSection] = []
    read: dict[str, str | int | list[str]] = {}
    identity: dict[str, str] = {}


def read_reports(path: Path) -> list[Report]:
    """Return the reports of a file that ``--format json`` wrote: one or several. Raises CkptcheckError for anything else."""
    if path.is_dir():
        raise CkptcheckError(f"{path} is a folder; report takes JSON files", hint=HINT)
    try:
        value = read_json_file(path)
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
    if isinstance(value, dict) and value.get("schema") == SCHEMA_OF_SEVERAL:
        value = value.get("reports")
    forms = value if isinstance(value, list) else [value]
    if not forms or not all(isinstance(form, dict) for form in forms):
        raise CkptcheckError(f"{path} is no report of ckptcheck: it holds no object with a report", hint=HINT)
    try:
        return [load_report(form) for form in forms]
    except CkptcheckError as error:
        raise CkptcheckError(f"{path}: {error.message}", hint=HINT) from error


def load_report(form: Mapping[str, Any]) -> Report:
    """Return the report that `Report.to_dict` wrote, or one with its pictures. Raises CkptcheckError for anything else."""
    if form.get("schema") == WITH_PICTURES:
        return _load_with_pictures(form)
    if form.get("schema") != SCHEMA:
        raise CkptcheckError(f"it is no report of ckptcheck ({SCHEMA})")
    try:
        stored = msgspec.convert(form, StoredReport)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise CkptcheckError(f"it is no report of ckptcheck ({SCHEMA}): {error}") from error
    return Report(
        target=stored.target,
        subject=stored.subject,
        findings=tuple(stored.findings),
        passed=tuple(stored.passed),
        skipped=tuple((row.code, row.reason) for row in stored.skipped),
        crashed=tuple((row.code, row.error) for row in stored.crashed),
        error=stored.error,
        known=stored.known,
        counts={name: number for name, number in stored.counts.items() if name not in SEVERITIES},
        consumers=tuple(map(msgspec.structs.asdict, stored.consumers)),
        sections=tuple(
            Section(one.title, tuple(one.columns), tuple(map(tuple, one.rows)), tuple(one.lines))
            for one in stored.sections
        ),
        read=stored.read,
        identities=stored.identity,
    )


def _load_with_pictures(form: Mapping[str, Any]) -> Report:
    from ckptcheck.linter.stored_pictures import load_picture

    report, pictures = form.get("report"), form.get("pictures")
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or not isinstance(pictures, list):
        raise CkptcheckError(f"it is no report of ckptcheck with pictures ({WITH_PICTURES})")
    headline = form.get("headline", "")
    if not isinstance(headline, str):
        raise CkptcheckError(f"it is no report of ckptcheck with pictures ({WITH_PICTURES}): its headline is no text")
    return structs.replace(load_report(report), headline=headline, pictures=tuple(map(load_picture, pictures)))
