"""A baseline: the findings a team knows and has accepted, so that only new ones count."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.report import Report
from ckptcheck.rule import Finding
from ckptcheck.writing import replace_file

SCHEMA = "ckptcheck-baseline/1"
Identity = tuple[str, str, str, str]


def identity(finding: Finding) -> Identity:
    """What makes two findings the same: code, file, key and message; the target's path may change."""
    return (finding.code, finding.file or "", finding.key or "", finding.message)


def write(path: Path, reports: Iterable[Report]) -> int:
    """Write the findings of these reports as the baseline and return how many. Raises CkptcheckError."""
    known = sorted({identity(finding) for report in reports for finding in report.findings})
    entries = [dict(zip(("code", "file", "key", "message"), entry, strict=True)) for entry in known]
    text = json.dumps({"schema": SCHEMA, "findings": entries}, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, text.encode("utf-8", "surrogatepass"))
    return len(entries)


def read(path: Path) -> frozenset[Identity]:
    """Read a baseline. Raises CkptcheckError when there is none or it is malformed."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8", "surrogatepass"))
        if value["schema"] != SCHEMA:
            raise ValueError(f"its schema is {value['schema']!r}")
        return frozenset((str(e["code"]), str(e["file"]), str(e["key"]), str(e["message"])) for e in value["findings"])
    except OSError as error:
        raise CkptcheckError(
            f"cannot read the baseline {path}: {error.strerror or error}", hint="--write-baseline FILE writes one"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CkptcheckError(f"{path} is not a baseline of ckptcheck: {error}") from error


def without(report: Report, known: frozenset[Identity]) -> Report:
    """Take the known findings out of a report; they are counted in `known`, and their rules did not pass."""
    new = tuple(finding for finding in report.findings if identity(finding) not in known)
    return replace(report, findings=new, known=len(report.findings) - len(new))
