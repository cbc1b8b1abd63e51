"""``ckptcheck parity why`` on files alone: reports, exit codes, and what it refuses in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import live
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from ckptcheck.cli.app import build_app
from ckptcheck.live.experiments.live_session import LiveSession
from ckptcheck.live.runtime.engines import registry
from ckptcheck.rollouts import Rollouts, write_rollouts
from tests.doubles.fake_serving import FakeServing
from tests.factories.attribution_cases import build_attribution
from tests.factories.probe_cases import ScoringTrainer
from tests.factories.rollout_cases import draw_rollouts

ABOUT: dict[str, Any] = {
    "engine": {"name": "vllm", "dtype": "float32"},
    "trainer": {"name": "megatron", "dtype": "float32"},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    live.write("llama", folder / "tiny")
    write_rollouts(draw_rollouts(noise=1e-5, metadata=ABOUT), folder / "healthy.safetensors")
    write_rollouts(draw_rollouts(noise=0.05, metadata=ABOUT), folder / "noisy.safetensors")
    write_rollouts(draw_rollouts(noise=0.001), folder / "nobody.safetensors")
    write_rollouts(moved(draw_rollouts(noise=1e-5, metadata=ABOUT)), folder / "moved.safetensors")
    write_rollouts(draw_rollouts(trainer=False), folder / "unscored.safetensors")
    write_rollouts(draw_rollouts(sequences=2), folder / "torn.safetensors")
    (folder / "torn.safetensors").write_bytes((folder / "torn.safetensors").read_bytes()[:-50])
    (folder / "no-mean.json").write_text(json.dumps({"format": "ckptcheck-floor/1", "metrics": {"k3": 1e-9}}))
    return folder


def moved(rollouts: Rollouts) -> Rollouts:
    """Give the trainer's logprobs to the token after."""
    values = np.array(rollouts.columns["trainer_logprobs"])
    for number in range(rollouts.sequence_count):
        where = rollouts.sequence(number)
        values[where] = np.roll(values[where], 1)
    return rollouts.with_columns(trainer_logprobs=values)


def why(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckptcheck", "parity", "why", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "XDG_CACHE_HOME": str(here / "home")}
    return subprocess.run(command, cwd=here, capture_output=True, text=True, env=environment, check=False)


def test_a_gap_at_the_floor_needs_no_ladder(here: Path) -> None:
    said = why(here, "healthy.safetensors")
    assert said.returncode == 0, said.stderr
    assert "floor 0.0001 (assumed)" in said.stdout
    assert "Experiments" not in said.stdout


def test_what_files_can_tell_is_told_with_the_ladder(here: Path) -> None:
    said = why(here, "moved.safetensors", "--format", "json")
    assert said.returncode == 1, said.stderr
    report = json.loads(said.stdout)
    (finding,) = report["findings"]
    assert finding["code"] == "ATT001"
    assert "vanishes with the trainer's logprobs moved by +1" in finding["message"]
    (ladder,) = [section for section in report["sections"] if section["title"] == "Experiments"]
    assert [row[0] for row in ladder["rows"]][1:4] == ["logprobs moved by a token", "the trainer again", "temperature"]
    assert ladder["rows"][2][-1] == "not needed"


def read_ladder(case: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Experiment → (share of the gap that it removes, its result), in the order of the report."""
    (ladder,) = build_attribution(case).sections
    return {str(row[0]): (str(row[4]), str(row[5])) for row in ladder.rows}


def test_the_objective_comes_last_and_a_lag_hides_no_fault_of_the_engine() -> None:
    lagging = read_ladder({"lag": True})
    assert list(lagging)[-1] == "tokens of older weights"
    others = {result for name, (_, result) in lagging.items() if name != "tokens of older weights"}
    assert others == {"ruled out: without a lag the two sides agree"}
    both = read_ladder({"lag": True, "effects": [{"undone_by": "fresh", "size": 0.1}]})
    removed = {name: share for name, (share, _) in both.items() if share != "None"}
    assert removed == {"caches": "36%", "tokens of older weights": "64%"}
    # where every token lags, the engine's own faults show when it scores them with the trainer's weights
    every = {"lag": True, "all_lag": True, "effects": [{"undone_by": "path", "size": 0.1}]}
    assert [name for name, (share, _) in read_ladder(every).items() if share != "None"] == [
        "decoding",
        "tokens of older weights",
    ]


def test_what_only_a_forward_could_tell_is_skipped_and_said(here: Path) -> None:
    said = why(here, "noisy.safetensors", "--fail-on", "warning")
    assert said.returncode == 1, said.stderr
    assert "the cause of 100% of the gap is unknown" in said.stdout
    assert "experiments were skipped: " in said.stdout
    assert "skipped, as no engine is given: " in said.stdout
    assert why(here, "noisy.safetensors").returncode == 0


def test_the_floor_is_measured_or_assumed_by_what_is_known_of_the_dtypes(here: Path) -> None:
    assert "floor 0.005 (assumed)" in why(here, "nobody.safetensors").stdout
    said = why(here, "noisy.safetensors", "--floor", "noisy.safetensors")
    assert said.returncode == 0, said.stderr
    assert "(assumed)" not in said.stdout
    assert "Experiments" not in said.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("torn.safetensors",), "torn.safetensors is malformed: "),
        (("unscored.safetensors",), "unscored.safetensors has no logprobs of a trainer"),
        (("none.safetensors",), "none.safetensors"),
        (("noisy.safetensors", "tiny", "--engine", "tgi"), "there is no engine tgi"),
        (("noisy.safetensors", "tiny", "--engine", "none", "--engine-source", "tiny"), "--engine-source has no effect with"),
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


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fake engine and trainer in place of real ones, in a folder of their own; returns what was started."""
    started: list[str] = []
    live.write("llama", tmp_path / "tiny")
    weights = load_file(live.write("llama", tmp_path / "swapped") / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][::-1].copy()
    save_file(weights, tmp_path / "swapped" / "model.safetensors")

    def engine(checkpoint: Path, *, dtype: str, context_len: int, switches: Any, **_: Any) -> FakeServing:
        started.append(f"{checkpoint.name} {dtype}")
        return FakeServing(
            load_file(next(checkpoint.glob("*.safetensors"))), switches=switches, length=context_len, dtype=dtype
        )

    class FileTrainer(ScoringTrainer):
        def __init__(self) -> None:
            super().__init__(tmp_path)
            started.append("trainer")
            self._held = load_file(tmp_path / "tiny" / "model.safetensors")

        def save(self, folder: Path) -> None:
            folder.mkdir()
            save_file(self._held, folder / "model.safetensors")

        def close(self) -> None:
            started.append("trainer ended")

    monkeypatch.setattr(registry, "ENGINES", {"vllm": engine})
    monkeypatch.setattr(LiveSession, "start_trainer", lambda self, *_, **__: FileTrainer())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return started


def parity(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), ["parity", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout or result.stderr


def test_a_file_is_scored_first_and_a_sound_pair_needs_no_engine(fakes: list[str]) -> None:
    parity("record", "tiny", "-o", "r.safetensors", "--number", "3", "--length", "20")
    fakes.clear()
    parity("why", "r.safetensors", "tiny")
    assert fakes == ["trainer", "trainer ended"]


def test_weights_that_differ_are_named_and_a_temperature_before_any_engine_is_started(fakes: list[str]) -> None:
    parity("record", "swapped", "-o", "r.safetensors", "--number", "3", "--length", "20")
    fakes.clear()
    said = parity("why", "r.safetensors", "tiny", "--engine-source", "swapped", code=1)
    assert "ATT001 gap-cause" in said
    assert "1 tensor differs: model.norm.weight" in said
    assert fakes == ["trainer", "swapped float32", "trainer-with-engine-config float32", "trainer ended"]
    parity("record", "tiny", "-o", "r.safetensors", "--number", "3", "--length", "20", "--temperature", "0.7")
    parity("score", "r.safetensors", "tiny", "-o", "s.safetensors", "--temperature", "0.7")
    fakes.clear()
    said = parity("why", "s.safetensors", "tiny", code=1)
    assert "ATT001 gap-cause" in said
    assert "vanishes at T = 1: the engine returned raw logprobs" in said
    assert fakes == ["trainer", "trainer ended"]
