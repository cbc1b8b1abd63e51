"""``ckptcheck parity why`` on files alone: reports, exit codes, and what it refuses in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import live
import numpy as np
import pytest
from rolled import rolled

from ckptcheck.rollouts import Rollouts, write

ABOUT = {"engine": {"name": "vllm", "dtype": "float32"}, "trainer": {"name": "megatron", "dtype": "float32"}}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    live.write("llama", folder / "tiny")
    write(rolled(noise=1e-5, metadata=ABOUT), folder / "healthy.safetensors")
    write(rolled(noise=0.05, metadata=ABOUT), folder / "noisy.safetensors")
    write(rolled(noise=0.001), folder / "nobody.safetensors")
    write(moved(rolled(noise=1e-5, metadata=ABOUT)), folder / "moved.safetensors")
    write(rolled(trainer=False), folder / "unscored.safetensors")
    write(rolled(sequences=2), folder / "torn.safetensors")
    (folder / "torn.safetensors").write_bytes((folder / "torn.safetensors").read_bytes()[:-50])
    (folder / "no-mean.json").write_text(json.dumps({"format": "ckptcheck-floor/1", "metrics": {"k3": 1e-9}}))
    return folder


def moved(rollouts: Rollouts) -> Rollouts:
    """Give the trainer's logprobs to the token after."""
    values = np.array(rollouts.columns["trainer_logprobs"])
    for number in range(rollouts.number):
        where = rollouts.sequence(number)
        values[where] = np.roll(values[where], 1)
    return rollouts.with_columns(trainer_logprobs=values)


def why(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "parity", "why", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "CKPTCHECK_HOME": str(here / "home")}
    return subprocess.run(command, cwd=here, capture_output=True, text=True, env=environment, check=False)


def test_a_gap_at_the_floor_needs_no_ladder(here: Path) -> None:
    said = why(here, "healthy.safetensors")
    assert said.returncode == 0, said.stderr
    assert "floor 0.0001 (assumed)" in said.stdout
    assert "The ladder" not in said.stdout


def test_what_files_can_tell_is_told_with_the_ladder(here: Path) -> None:
    said = why(here, "moved.safetensors", "--format", "json")
    assert said.returncode == 1, said.stderr
    report = json.loads(said.stdout)
    (finding,) = report["findings"]
    assert finding["code"] == "ATT001"
    assert "vanishes with the trainer's logprobs moved by +1" in finding["message"]
    (ladder,) = [section for section in report["sections"] if section["title"] == "The ladder"]
    assert [row[0] for row in ladder["rows"]][2:5] == ["logprobs moved by a token", "the trainer again", "temperature"]
    assert ladder["rows"][3][-1] == "not needed"


def test_what_only_a_forward_could_tell_is_skipped_and_said(here: Path) -> None:
    said = why(here, "noisy.safetensors", "--fail-on", "warning")
    assert said.returncode == 1, said.stderr
    assert "the cause of 100% of the gap is unknown" in said.stdout
    assert "rungs were skipped: " in said.stdout
    assert "skipped: no engine is given" in said.stdout
    assert why(here, "noisy.safetensors").returncode == 0


def test_the_floor_is_measured_or_assumed_by_what_is_known_of_the_dtypes(here: Path) -> None:
    assert "floor 0.005 (assumed)" in why(here, "nobody.safetensors").stdout
    said = why(here, "noisy.safetensors", "--floor", "noisy.safetensors")
    assert said.returncode == 0, said.stderr
    assert "(assumed)" not in said.stdout
    assert "The ladder" not in said.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("torn.safetensors",), "torn.safetensors is malformed: "),
        (("unscored.safetensors",), "unscored.safetensors has no logprobs of a trainer"),
        (("none.safetensors",), "none.safetensors"),
        (("noisy.safetensors", "tiny", "--engine", "tgi"), "there is no engine tgi"),
        (("noisy.safetensors", "tiny", "--engine", "none", "--engine-source", "tiny"), "--engine-source is for an engine"),
        (("noisy.safetensors", "nowhere"), "nowhere"),
        (("noisy.safetensors", "tiny", "--switch", "cache=on"), "there is no switch cache"),
        (("noisy.safetensors", "--floor", "no-mean.json"), "no-mean.json has no abs_mean"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_one_sentence(arguments: tuple[str, ...], said: str, here: Path) -> None:
    result = why(here, *arguments)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout
