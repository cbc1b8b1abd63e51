"""The cases of rules about a job's configuration: the files are written, and read as the command line would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.jobs.job import Job
from ckptcheck.jobs.open_job import open_job
from tests.doubles.machine import build_probe
from tests.factories.checkpoint_cases import CheckpointChanges, write_checkpoint


class JobCase(CheckpointChanges, kw_only=True):
    """A case of a rule on a job's configuration. The changes are those made to the base, if it has one."""

    base: str = ""
    """The checkpoint in the folder model beside the configuration; empty for none."""
    job: str
    """The text of the configuration."""
    critic: dict[str, Any] = {}
    """The checkpoint in the folder critic beside the configuration: a base and its changes; empty for none."""
    name: str = "job.yaml"
    """The name of the file with the configuration."""
    files: dict[str, str] = {}
    """Further files: name → text."""
    overrides: list[str] = []
    """``key=value`` on the command line."""
    here: dict[str, Any] = {}
    """What this machine has, for ``--here``: taken_ports, free (bytes), shared_memory (bytes) and files (paths that are there);
    empty: nothing of this machine is looked at."""
    told: dict[str, str] = {}
    """engine_version, te_version, framework_version: what the user says of the job's machines."""
    settings: bool = False
    """Whether the report lists every setting (``--settings``)."""


def read_job(table: Mapping[str, Any], folder: Path) -> Job:
    """Write the files of a case, with a checkpoint in the folder ``model`` where it has a base, and open the job."""
    case = msgspec.convert(table, JobCase)
    folder.mkdir(exist_ok=True)
    if case.base:
        write_checkpoint(table, folder / "model")
    if case.critic:
        write_checkpoint(case.critic, folder / "critic")
    path = folder / case.name
    for name, text in {case.name: case.job, **case.files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    here = build_probe(case.here, folder / "machine") if case.here else None
    job = open_job([str(path), *case.overrides], here=here, **case.told)
    job.lists_settings = case.settings
    return job
