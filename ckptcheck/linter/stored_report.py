"""Reads reports from the JSON form in which they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import SCHEMA, Report, Section
from ckptcheck.linter.rule import SEVERITIES, Finding
from ckptcheck.text.file_io import read_json_file

HINT = "--format json -o FILE writes one, --format json-with-pictures one with its pictures"
WITH_PICTURES = "ckptcheck-report-with-pictures/1"
"""The schema of an object with a report and its pictures, as ``--format json-with-pictures`` writes them."""


def read_reports(path: Path) -> list[Report]:
    """Return the reports of a file that ``--format json`` wrote: one, or a list. Raises CkptcheckError for anything else."""
    try:
        value = read_json_file(path)
    except OSError as error:
        raise CkptcheckError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CkptcheckError(f"{path} is no report of ckptcheck: {error}", hint=HINT) from error
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
    try:
        if form["schema"] != SCHEMA:
            raise KeyError(form["schema"])
        return Report(
            target=form["target"],
            subject=form.get("subject", ""),
            findings=tuple(
                Finding(**{**finding, "names": tuple(finding.get("names", ()))}) for finding in form["findings"]
            ),
            passed=tuple(form["passed"]),
            skipped=tuple((row["code"], row["reason"]) for row in form["skipped"]),
            crashed=tuple((row["code"], row["error"]) for row in form["crashed"]),
            error=form.get("error"),
            known=form["known"],
            counts={name: number for name, number in form["counts"].items() if name not in SEVERITIES},
            consumers=tuple(form.get("consumers", ())),
            sections=tuple(_load_section(section) for section in form.get("sections", ())),
            read=form.get("read", {}),
            identities=form.get("identity", {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CkptcheckError(f"it is no report of ckptcheck ({SCHEMA}): {error}") from error


def _load_with_pictures(form: Mapping[str, Any]) -> Report:
    from ckptcheck.linter.stored_pictures import load_picture

    report, pictures = form.get("report"), form.get("pictures")
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or not isinstance(pictures, list):
        raise CkptcheckError(f"it is no report of ckptcheck with pictures ({WITH_PICTURES})")
    headline = form.get("headline", "")
    if not isinstance(headline, str):
        raise CkptcheckError(f"it is no report of ckptcheck with pictures ({WITH_PICTURES}): its headline is no text")
    return replace(load_report(report), headline=headline, pictures=tuple(map(load_picture, pictures)))


def _load_section(form: Mapping[str, Any]) -> Section:
    return Section(
        form["title"],
        tuple(form.get("columns", ())),
        tuple(tuple(row) for row in form.get("rows", ())),
        tuple(form.get("lines", ())),
    )
