"""A gate runs the stages in the order of their cost, within its deadline, and says what it did not check."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from tests.conftest import needs_engine
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.live.refit.test_trouble import marked, place, write_stand_ins  # noqa: F401 - a fixture
from tests.paths import ROOT

EXAMPLES = sorted((ROOT / "docs/gate").glob("*/gate.toml"))
JOB = """\
model_name_or_path: tiny
dataset_name: org/problems
use_vllm: true
vllm_mode: colocate
max_completion_length: 16
temperature: 1.0
bf16: false
"""
SOUND = ("--stages", "preflight,scan")


@dataclass(frozen=True)
class Outcome:
    """What a gate left: its exit code, its report, and what it said."""

    code: int
    report: dict[str, Any]
    err: str

    @property
    def stages(self) -> dict[str, str]:
        """Stage → outcome."""
        return {row[0]: row[1] for row in self.report["sections"][0]["rows"]}


def gate(folder: Path, *arguments: str, **environment: str) -> Outcome:
    command = [sys.executable, "-m", "ckptcheck", "gate", *arguments, "--format", "json"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=600
    )
    assert done.stdout, done.stderr
    return Outcome(done.returncode, json.loads(done.stdout), done.stderr)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "tiny")
    (tmp_path / "train.yaml").write_text(JOB, encoding="utf-8")
    (tmp_path / "gate.toml").write_text(
        'job = "train.yaml"\n[preflight]\nframework = "trl"\nframework-version = "1.16.0"\n', encoding="utf-8"
    )
    return tmp_path


def break_checkpoint(folder: Path) -> None:
    (folder / "tiny/model-00002-of-00003.safetensors").unlink()


def test_a_sound_job_passes_and_leaves_a_page(here: Path) -> None:
    outcome = gate(here, "gate.toml", *SOUND)
    assert (outcome.code, outcome.report["verdict"]) == (0, "clean")
    assert outcome.stages == {
        "preflight": "clean", "scan": "clean", "refit": "not run: it is left out", "parity": "not run: it is left out",
    }  # fmt: skip
    assert {"JOB001", "IDX001"} <= set(outcome.report["passed"])
    page = (here / "gate.gate/report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "Stages of the gate" in page


def test_a_finding_ends_the_gate_before_dearer_stages(here: Path) -> None:
    break_checkpoint(here)
    outcome = gate(here, "gate.toml", "--stages", "scan,refit,parity")
    assert outcome.code == 1
    assert outcome.report["verdict"] == "findings"
    assert outcome.report["findings"][0]["code"] == "IDX001"
    assert outcome.stages["refit"] == f"not run: scan found {outcome.stages['scan']}"
    assert outcome.stages["scan"].endswith("error")


@pytest.mark.slow
def test_go_on_runs_the_rest_all_the_same(here: Path) -> None:
    break_checkpoint(here)
    outcome = gate(here, "gate.toml", "--stages", "scan,refit", "--go-on")
    assert outcome.code == 2  # the trial does not take a source with errors, so it has not checked
    assert outcome.stages["refit"].startswith("not checked: tiny has 1 error")


def test_a_model_that_is_not_here_is_not_checked(here: Path) -> None:
    (here / "train.yaml").write_text(JOB.replace("tiny", "org/elsewhere"), encoding="utf-8")
    outcome = gate(here, "gate.toml")
    assert outcome.code == 2
    reason = "org/elsewhere is on the Hub, and not read; name a copy on this machine with --model, or with model in the gate file"
    assert outcome.stages["scan"] == f"not checked: {reason}"
    assert outcome.stages["refit"] == outcome.stages["parity"] == "not checked, as scan"
    assert outcome.report["error"] == f"scan, refit and parity are not checked: {reason}"
    assert gate(here, "gate.toml", *SOUND, "--model", "tiny").code == 0


def test_what_did_not_fit_is_not_checked_and_no_pass(here: Path) -> None:
    outcome = gate(here, "gate.toml", *SOUND, "--deadline", "0.001 s")
    assert (outcome.code, outcome.report["verdict"]) == (2, "incomplete")
    assert outcome.stages["scan"].startswith("not checked: the deadline of")
    assert "not checked: the deadline of" in outcome.report["error"]


def test_two_gates_do_not_write_to_one_folder(here: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    (here / "gate.gate").mkdir()
    with open(here / "gate.gate/lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = gate(here, "gate.toml", *SOUND)
    assert outcome.code == 2
    assert "another gate is at work in gate.gate" in outcome.report["error"]


def write_stand_in(example: Path, folder: Path) -> Path:
    """Copy an example, with a tiny model beside it that stands in for the one on the Hub; return the folder.

    Where the job repeats the sizes of its model, it gets those of the tiny one.
    """
    live = pytest.importorskip("live")
    shutil.copytree(example.parent, folder)
    live.write("qwen3", folder / "model")
    path = folder / "model/config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": 4096}), encoding="utf-8")
    sizes = {"num-layers": 2, "hidden-size": 64, "ffn-hidden-size": 96, "num-attention-heads": 4}
    for script in folder.glob("*.sh"):
        text = script.read_text(encoding="utf-8")
        for name, size in sizes.items():
            text = re.sub(rf"(?<=--{name} )\d+", str(size), text)
        script.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_an_example_passes_preflight_and_scan(example: Path, tmp_path: Path) -> None:
    folder = write_stand_in(example, tmp_path / "job")
    outcome = gate(folder, "gate.toml", *SOUND, "--model", "model")
    assert (outcome.code, outcome.report["findings"]) == (0, [])
    # preflight looks at the copy too, and does not call it a model that is on the Hub
    assert {"JOB017", "CFG001"} <= set(outcome.report["passed"])


def test_preflight_scans_the_copy(here: Path) -> None:
    (here / "train.yaml").write_text(JOB.replace("tiny", "org/elsewhere"), encoding="utf-8")
    break_checkpoint(here)
    outcome = gate(here, "gate.toml", "--stages", "preflight", "--model", "tiny")
    (finding,) = outcome.report["findings"]
    assert (finding["code"], outcome.code) == ("JOB017", 1)
    assert finding["message"].startswith("org/elsewhere has 1 error, the first: IDX001 ")
    assert "ckptcheck scan tiny --headers-only" in finding["hint"]


def test_there_is_an_example_for_each_framework() -> None:
    assert {path.parent.name for path in EXAMPLES} == {"nemo-rl", "slime", "trl", "verl"}


# --- trials, on stand-ins for engine and trainer ---


@pytest.fixture
def trial(place: Path) -> Path:  # noqa: F811
    """A job in a folder with Pythons that stand in for an engine's and a trainer's."""
    shutil.copytree(CHECKPOINTS / "tiny-llama", place / "tiny")
    (place / "train.yaml").write_text(JOB, encoding="utf-8")
    (place / "gate.toml").write_text(
        f'job = "train.yaml"\nstages = ["preflight", "refit"]\n[preflight]\nframework = "trl"\n'
        f'[refit]\ndtype = "float32"\nbucket-mb = 0.002\n'  # the stand-ins compute in nothing else
        f'engine-python = "{place / "engine"}"\ntrainer-python = "{place / "trainer"}"\n',
        encoding="utf-8",
    )
    return place


@pytest.mark.slow
def test_a_trial_runs_as_the_job_says(trial: Path) -> None:
    outcome = gate(trial, "gate.toml", **write_stand_ins(trial, ""))
    assert (outcome.code, outcome.stages["refit"]) == (0, "clean")
    assert "REF003" in outcome.report["passed"]


@pytest.mark.slow
def test_parity_follows_a_trial(trial: Path) -> None:
    job = trial / "gate.toml"
    content = job.read_text(encoding="utf-8").replace('"preflight", "refit"', '"preflight", "refit", "parity"')
    pythons = f'engine-python = "{trial / "engine"}"\ntrainer-python = "{trial / "trainer"}"\n'
    content += f"[parity]\n{pythons}number = 2\nlength = 12\nresponse = 8\n"
    job.write_text(content, encoding="utf-8")
    environment = write_stand_ins(trial, "")
    outcome = gate(trial, "gate.toml", **environment)
    assert (outcome.code, outcome.stages["refit"]) == (0, "clean"), outcome.report
    assert "PAR001" in outcome.report["passed"]
    assert (trial / "gate.gate/scored.safetensors").exists()


@pytest.mark.slow
def test_a_trial_that_hangs_is_stopped_at_the_deadline_and_leaves_nothing(trial: Path) -> None:
    environment = write_stand_ins(trial, "engine:update_weights:1:hangs")
    outcome = gate(trial, "gate.toml", "--deadline", "20 s", **environment)
    assert outcome.code == 2
    assert outcome.stages["refit"] == "not checked: it was stopped at the deadline of 20 seconds"
    assert not marked(environment["CELL"])
    assert list((trial / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_gate_that_is_terminated_ends_its_processes_and_reports(trial: Path) -> None:
    environment = write_stand_ins(trial, "engine:update_weights:1:hangs")
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptcheck", "gate", "gate.toml", "--format", "json"], cwd=trial, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    wait_for(trial / "notes")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    report = json.loads(out)
    assert process.returncode == 2, err
    assert "refit is not checked: interrupted by SIGTERM" in report["error"]
    assert not marked(environment["CELL"])


@pytest.mark.slow
def test_a_gate_that_is_killed_leaves_no_processes(trial: Path) -> None:
    environment = write_stand_ins(trial, "engine:update_weights:1:hangs")
    process = subprocess.Popen(
        [sys.executable, "-m", "ckptcheck", "gate", "gate.toml"], cwd=trial, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, **environment},
    )  # fmt: skip
    wait_for(trial / "notes")
    process.kill()
    process.wait()
    for _ in range(600):
        if not marked(environment["CELL"]):
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {marked(environment['CELL'])}")


def wait_for(file: Path) -> None:
    """Wait until the stand-ins have noted something: they run."""
    for _ in range(900):
        if file.read_text(encoding="utf-8"):
            return
        time.sleep(0.1)
    pytest.fail("the trial did not start")


# --- the whole gate, on the real engine ---


@pytest.mark.engine
@pytest.mark.xdist_group("vllm-cpu")
def test_a_whole_gate_passes_and_is_not_repeated(here: Path) -> None:
    live = pytest.importorskip("live")
    needs_engine("vllm")
    needs_engine("megatron")
    shutil.rmtree(here / "tiny")
    live.write("llama", here / "tiny")
    with open(here / "gate.toml", "a", encoding="utf-8") as file:
        file.write("[parity]\nnumber = 2\nlength = 12\nresponse = 8\n")
    outcome = gate(here, "gate.toml", "--deadline", "20 min")
    assert outcome.code == 0, outcome.report
    # TRL resets the prefix cache after a sync, and so does the trial
    assert {"JOB001", "CFG001", "REF003", "REF010", "REF011", "PAR001"} <= set(outcome.report["passed"])
    assert not [row for row in outcome.stages.values() if row.startswith("not ")]


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            path, id=path.parent.name, marks=[pytest.mark.engine if path.parent.name == "slime" else pytest.mark.matrix]
        )
        for path in EXAMPLES
    ],
)
@pytest.mark.xdist_group("engine")
def test_an_example_passes_whole(example: Path, tmp_path: Path) -> None:
    """With a tiny model in place of the one on the Hub, every stage runs on the engine and the trainer of the framework."""
    for engine in ("sglang", "megatron") if example.parent.name == "slime" else ("vllm",):
        needs_engine(engine)
    folder = write_stand_in(example, tmp_path / "job")
    with open(folder / "gate.toml", "a", encoding="utf-8") as file:
        file.write("length = 12\nresponse = 8\n")  # of [parity], the last table
    outcome = gate(folder, "gate.toml", "--model", "model", "--deadline", "20 min")
    assert outcome.code == 0, outcome.report
    assert {"JOB017", "CFG001", "REF003", "REF011", "PAR001"} <= set(outcome.report["passed"])
    assert not [row for row in outcome.stages.values() if row.startswith("not ")]


def test_a_gate_file_that_came_with_the_checkpoint_runs_nothing(here: Path) -> None:
    (here / "tiny/evil").mkdir()
    (here / "tiny/evil/evi001_x.py").write_text(
        f"import pathlib\npathlib.Path('{here}/owned').touch()\n", encoding="utf-8"
    )
    (here / "tiny/train.yaml").write_text(JOB, encoding="utf-8")
    own = f'[scan]\nrules = ["{here}/tiny/evil"]\n[preflight]\nframework = "trl"\nframework-version = "1.16.0"\n'
    file = here / "tiny/gate.toml"
    for job in ('job = "train.yaml"\nmodel = "."\n', 'job = "../train.yaml"\n'):
        file.write_text(job + own, encoding="utf-8")
        with pytest.raises(CkptcheckError, match=r"lies in the checkpoint .*, and a gate file can run code") as refusal:
            ckptcheck.gate(file, stages=["scan"], folder=here / "kept")
        assert refusal.value.hint == "copy it to a folder of yours when you have read it"
    assert not (here / "owned").exists()
