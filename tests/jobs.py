"""The cases of rules about a job's configuration: the files are written, and read as the command line would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cases import build

from ckptcheck.preflight.job import Job
from ckptcheck.preflight.open import open_job


def job(table: dict[str, Any], folder: Path) -> Job:
    """Write the files of a case, with a checkpoint in the folder ``model`` where it has a base, and open the job."""
    folder.mkdir(exist_ok=True)
    if "base" in table:
        keys = ("title", "job", "name", "files", "overrides", "told", "expect", "skip")
        build({key: value for key, value in table.items() if key not in keys}, folder / "model")
    path = folder / table.get("name", "job.yaml")
    path.write_text(table["job"], encoding="utf-8")
    for name, text in table.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return open_job([str(path), *table.get("overrides", [])], **table.get("told", {}))
