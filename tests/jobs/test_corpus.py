"""The small jobs of every framework are clean, and each one-line mistake in them is named with its file and line.

A folder of tests/jobs/corpus holds the jobs of one framework, which were written for this corpus with its real keys, and
mutations.toml: the job, the text to replace, and the findings that appear then. Infos count where they say that a key is not
understood or not resolved.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.linter.report import Report
from ckptcheck.verbs.preflight import preflight

JOBS = Path(__file__).parent / "corpus"
COUNTED = ("JOB023", "JOB024")


def list_findings(report: Report) -> list[str]:
    """Write what a report finds: ``JOB001 job.sh:12``."""
    found = []
    for finding in report.findings:
        if finding.severity in ("error", "warning") or finding.code in COUNTED:
            place = f"{finding.file}:{finding.line}" if finding.line else str(finding.file)
            found.append(f"{finding.code} {place}")
    return sorted(found)


def list_sound_jobs() -> list[Path]:
    """Return the jobs of all frameworks; files beside them that they name stand in folders of their own."""
    return [
        path
        for folder in sorted(JOBS.iterdir())
        for path in sorted(folder.glob("*.*"))
        if path.suffix != ".md" and path.name != "mutations.toml"
    ]


def list_mutations() -> list[Any]:
    """Return (folder, mutation) of all frameworks."""
    found = []
    for table in sorted(JOBS.glob("*/mutations.toml")):
        for number, mutation in enumerate(tomllib.loads(table.read_text(encoding="utf-8"))["mutation"], 1):
            found.append(pytest.param(table.parent, mutation, id=f"{table.parent.name}-{number}-{mutation['job']}"))
    return found


@pytest.mark.parametrize("job", list_sound_jobs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_sound_job_is_clean(job: Path) -> None:
    report = preflight(job)
    assert list_findings(report) == []
    assert sum(not row[2].startswith("default") for row in _settings(job)) > 2, "the job is read"


def _settings(job: Path) -> list[tuple[Any, ...]]:
    report = preflight(job, show_settings=True)
    return [tuple(row) for section in report.sections for row in section.rows if section.title == "What the job says"]


@pytest.mark.parametrize(("folder", "mutation"), list_mutations())
def test_a_mistake_is_named_with_its_line(folder: Path, mutation: dict[str, Any], tmp_path: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    job = tmp_path / mutation.get("file", mutation["job"])
    text = job.read_text(encoding="utf-8")
    assert text.count(mutation["old"]) == 1, "the mutation changes one place"
    text = text.replace(mutation["old"], mutation["new"])
    job.write_text(text, encoding="utf-8")
    for *other, old, new in mutation.get("also", []):
        file = tmp_path / other[0] if other else job
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1, "so does each further one"
        file.write_text(text.replace(old, new), encoding="utf-8")
    assert list_findings(preflight(tmp_path / mutation["job"])) == sorted(mutation["expect"])
