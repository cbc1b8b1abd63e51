"""Real jobs of real frameworks, each with a real vLLM on a CPU: sound syncs are quiet, and every fault is named in the job."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from jobs import launch

from ckptcheck import api
from ckptcheck.linter.rule import Finding
from tests.conftest import needs_engine

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

LINE = re.compile(r"SyncWarning: (HIS\d+) (.*)")


def run(job: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; skip where its framework is not installed."""
    needs_engine(launch.RECIPES[job])
    done = launch.run(job, str(out), *arguments, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return done


def lines_of_the_log(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the watch wrote into the job's log, each as ``CODE where``."""
    return [f"{match[1]} {match[2].partition(':')[0]}" for match in LINE.finditer(done.stderr)]


def said_of(out: Path) -> dict[str, list[str]]:
    """Return the findings of ``refit history`` on the job's record: the step that each names → code, message and tensor."""
    said: dict[str, list[str]] = {}
    for finding in api.history(out / "syncs.jsonl").findings:
        said.setdefault(finding.message.partition(":")[0], []).append(line(finding))
    return said


def line(finding: Finding) -> str:
    return f"{finding.code} {finding.message.partition(': ')[2]} [{finding.key or ''}]"


def test_a_job_of_trl_is_quiet_and_each_fault_in_it_is_named(tmp_path: Path) -> None:
    """Six sound syncs, then one fault after the other with sound syncs in between. Nothing else is said."""
    lost = "model.layers.1.mlp.down_proj.weight"
    faults = (f"6=lost:{lost}", "9=skipped", "11=stale", "13=rounded", "15=narrow", "17=unsent:model.layers.0.*")
    done = run("trl_grpo", tmp_path, "--steps", "20", "--fault", *faults)
    said = said_of(tmp_path)
    assert list(said["step 6"]) == [
        f"HIS001 1 tensor of the engine did not change although the trainer sent new values: {lost} [{lost}]"
    ]
    assert said["step 10"] == ["HIS014 1 sync missing since step 8, in a job that syncs after every step []"]
    assert said["step 11"] == ["HIS002 the trainer sent all 21 tensors as at step 10 []"]
    (rounded,) = said["step 13"]
    assert rounded.startswith("HIS008 the engine holds other values than the trainer sent in 9 tensors")
    (narrow,) = said["step 15"]
    assert re.match(r"HIS015 the trainer sent its 21 tensors in 214,\d+ bytes, and in 428,\d+ at step 14", narrow)
    (unsent,) = said["step 17"]
    assert unsent.startswith("HIS007 the trainer no longer sends 9 of 21 tensors: model.layers.0.")
    assert set(said) == {"step 6", "step 10", "step 11", "step 13", "step 15", "step 16", "step 17"}
    assert lines_of_the_log(done) == [
        "HIS001 step 6", "HIS014 step 10", "HIS002 step 11", "HIS008 step 13", "HIS015 step 15", "HIS015 step 16", "HIS007 step 17",
    ]  # fmt: skip
    assert (
        f"HIS001 step 6: 1 tensor of the engine did not change although the trainer sent new values: {lost}"
        in done.stderr
    )
