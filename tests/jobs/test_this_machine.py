"""What preflight looks at on this machine: only on request, and without leaving a trace."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.jobs import this_machine
from ckptcheck.jobs.open_job import open_job
from ckptcheck.jobs.this_machine import Probe

JOB = """export MASTER_PORT={port}
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={model} trainer.default_local_dir={save}
"""


def written(folder: Path, **values: object) -> str:
    defaults = {"port": 1, "model": "org/model", "save": "org"}
    (folder / "run.sh").write_text(JOB.format(**defaults | values), encoding="utf-8")
    return str(folder / "run.sh")


def test_nothing_of_this_machine_is_looked_at_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError

    for name in ("free_bytes", "shared_memory", "is_port_taken"):
        monkeypatch.setattr(Probe, name, refuse)
    monkeypatch.setattr(this_machine, "look_at_machine", refuse)
    job = written(tmp_path, port=8000, model="/not/there", save="/not/there")
    report = ckptcheck.preflight(job)
    assert not [finding for finding in report.findings if finding.code >= "JOB055"]
    assert open_job([job]).machine is None


def test_a_port_on_which_somebody_listens_is_taken_and_is_free_after(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen(1)
        port = other.getsockname()[1]
        job = written(tmp_path, port=port)
        assert [finding.line for finding in ckptcheck.preflight(job, here=True, select=["JOB057"]).findings] == [1]
    assert not ckptcheck.preflight(job, here=True, select=["JOB057"]).findings
    assert not Probe().is_port_taken(port), "the look itself has to leave the port free"


def test_a_look_makes_no_folder(tmp_path: Path) -> None:
    save = tmp_path / "new" / "folder"
    assert not ckptcheck.preflight(written(tmp_path, save=save), here=True, select=["JOB057"]).findings
    assert not save.parent.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    report = ckptcheck.preflight(written(tmp_path, save=locked / "run"), here=True, select=["JOB057"])
    assert "cannot be written by this user" in report.findings[0].message


def test_a_name_that_is_no_path_ends_as_a_sentence(tmp_path: Path) -> None:
    report = ckptcheck.preflight(written(tmp_path, save="/" + "a" * 5000), here=True, select=["JOB057"])
    assert "cannot be looked at" in report.findings[0].message


def test_shared_memory_and_free_bytes_are_those_of_the_system(tmp_path: Path) -> None:
    assert Probe().free_bytes(tmp_path) > 0
    assert Probe().shared_memory() is None or Path("/dev/shm").exists()
