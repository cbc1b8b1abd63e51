"""Reads and writes a baseline: the findings that a team has accepted, so that only new ones count."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.text.file_io import read_regular_file, real_path, replace_file

SCHEMA = "ckptcheck-baseline/1"
Identity = tuple[str, str, str, str]


def finding_identity(finding: Finding) -> Identity:
    """Return what identifies a finding: code, file, key and message, but not the target's path, which may change."""
    return (finding.code, finding.file or "", finding.key or "", finding.message)


def write_baseline(path: Path, reports: Iterable[Report]) -> frozenset[Identity]:
    """Write the findings of these reports as the baseline, and return them. Raises CkptcheckError."""
    known = frozenset(finding_identity(finding) for report in reports for finding in report.findings)
    entries = [dict(zip(("code", "file", "key", "message"), entry, strict=True)) for entry in sorted(known)]
    text = json.dumps({"schema": SCHEMA, "findings": entries}, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode("utf-8", "surrogatepass"))
    return known


LARGEST = 100_000_000
"""Most bytes of a baseline that are read; a longer one is cut off, so it fails to parse."""


def read_baseline(path: Path) -> frozenset[Identity]:
    """Read a baseline. Raises CkptcheckError if the file is missing or malformed."""
    hint = "--write-baseline FILE writes one"
    try:
        value = json.loads(read_regular_file(real_path(path), LARGEST).decode("utf-8", "surrogatepass"))
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"its schema is {schema!r}, not {SCHEMA!r}" if schema else f"it has no schema {SCHEMA!r}")
        return frozenset((str(e["code"]), str(e["file"]), str(e["key"]), str(e["message"])) for e in value["findings"])
    except OSError as error:
        raise CkptcheckError(f"cannot read the baseline {path}: {error.strerror or error}", hint=hint) from error
    except (KeyError, TypeError) as error:
        why = "its findings are no list of objects with code, file, key and message"
        raise CkptcheckError(f"{path} is not a baseline of ckptcheck: {why}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise CkptcheckError(f"{path} is not a baseline of ckptcheck: {error}", hint=hint) from error


def drop_known(report: Report, known: frozenset[Identity]) -> Report:
    """Return the report without known findings; `Report.known` counts them, and their rules do not count as passed."""
    new = tuple(finding for finding in report.findings if finding_identity(finding) not in known)
    return structs.replace(report, findings=new, known=len(report.findings) - len(new))
