"""The commands from end to end, with the fake engine and trainer in place of real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import live
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.live_session import LiveSession
from ckptcheck.parity.rollouts import read_rollouts
from ckptcheck.runtime.engines import registry
from tests.doubles.fake_serving import FakeServing
from tests.factories.probe_cases import ScoringTrainer

faults: list[str] = []


def engine(checkpoint: Path, *, dtype: str, context_len: int, switches: Any, **_: Any) -> FakeServing:
    weights = load_file(checkpoint / "model.safetensors")
    return FakeServing(weights, faults, switches=switches, length=context_len, dtype=dtype, ends=(2,))


class FileTrainer(ScoringTrainer):
    """Holds a checkpoint's weights."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder)
        self._held = load_file(checkpoint / "model.safetensors")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    live.write("llama", tmp_path / "tiny")
    monkeypatch.setattr(registry, "ENGINES", {"vllm": engine})
    monkeypatch.setattr(LiveSession, "start_trainer", lambda self, *_, **__: FileTrainer(tmp_path, tmp_path / "tiny"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    faults.clear()
    return tmp_path


def parity(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), ["parity", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout or result.stderr


def test_record_score_judge(here: Path) -> None:
    said = parity(
        "record", "tiny", "-o", "r.safetensors", "--number", "3", "--length", "20", "--full", "5", "--step", "0"
    )
    assert "3 responses" in said
    assert "PAR027 info: the mean logprob of the engine is" in said, "an untrained model says nothing likely"
    assert not (recorded := read_rollouts(here / "r.safetensors")).defects
    assert (recorded.metadata.step, recorded.metadata.logprobs, recorded.metadata.vocabulary) == (0, "raw", 512)
    parity("score", "r.safetensors", "tiny", "-o", "s.safetensors")
    assert "trainer_full_logprobs" in read_rollouts(here / "s.safetensors")
    first = parity("judge", "s.safetensors", "--format", "json")
    assert first == parity("judge", "s.safetensors", "--format", "json")
    assert json.loads(first)["counts"]["error"] == 0


def test_processed_logprobs_are_scored_at_their_temperature(here: Path) -> None:
    parity(
        "record",
        "tiny",
        "-o",
        "r.safetensors",
        "--temperature",
        "0.5",
        "--switch",
        "logprobs=processed",
        "--number",
        "2",
    )
    parity("score", "r.safetensors", "tiny", "-o", "s.safetensors")
    scored = read_rollouts(here / "s.safetensors")
    assert scored.metadata.trainer is not None
    assert (scored.metadata.logprobs, scored.metadata.trainer.temperature) == ("processed", 0.5)


def test_a_floor_is_written_and_shown(here: Path) -> None:
    said = parity("calibrate", "tiny", "-o", "floor.json", "--number", "3", "--length", "20", "--response", "6")
    assert "The floor of this model" in said
    assert json.loads((here / "floor.json").read_text())["model"] == "tiny"


@pytest.mark.parametrize("command", ["record", "calibrate"])
def test_what_cannot_be_written_is_said_before_anything_runs(
    here: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "p.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.setattr(registry, "ENGINES", {})
    for output, said in (
        ("none/r.json", "cannot write none/r.json"),
        ("tiny", "it is a folder"),
        ("p.jsonl", "overwritten"),
    ):
        with pytest.raises(CkptcheckError, match=said):
            parity(command, "tiny", "-o", output, "--prompts", "p.jsonl")
    assert (here / "p.jsonl").read_text() == '{"text": "a"}\n'


def test_logprobs_that_stayed_raw_are_called_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(checkpoint: Path, *, context_len: int, switches: Any, **_: Any) -> FakeServing:
        held = load_file(checkpoint / "model.safetensors")
        return FakeServing(held, switches=switches, length=context_len, untaken=["logprobs=processed"])

    monkeypatch.setattr(registry, "ENGINES", {"vllm": stubborn})
    parity("record", "tiny", "-o", "r.safetensors", "--temperature", "0.5", "--switch", "logprobs=processed")
    assert read_rollouts(here / "r.safetensors").metadata.logprobs == "raw"
    parity("score", "r.safetensors", "tiny", "-o", "s.safetensors", "--trainer-version", "3")
    trainer = read_rollouts(here / "s.safetensors").metadata.trainer
    assert trainer is not None
    assert (trainer.temperature, trainer.weight_version) == (1.0, "3")


def test_the_matrix_is_resumed_and_written_in_markdown(here: Path) -> None:
    options = [
        "matrix",
        "tiny",
        "--lengths",
        "30,600",
        "--response",
        "6",
        "--batch",
        "3",
        "--sequences",
        "2",
        "--repeats",
        "1",
    ]
    said = parity(*options, "--calibrate", "--resume", "m.jsonl", "--markdown", "m.md", "--format", "json")
    report = json.loads(said)
    assert (report["verdict"], report["counts"]["error"]) == ("clean", 0)
    assert {section["title"].partition(",")[0] for section in report["sections"]} >= {"mult_prob_error", "Left out"}
    assert "Not measured: length 600: the model's context ends at 512 tokens" in (here / "m.md").read_text()
    lines = (here / "m.jsonl").read_text()
    parity(*options, "--resume", "m.jsonl")
    assert (here / "m.jsonl").read_text() == lines


SMALL = ("matrix", "tiny", "--lengths", "30", "--repeats", "1", "--response", "6")


@pytest.mark.parametrize(("options", "said"), [
    (["--floor", "nowhere.json"], "cannot read the floor nowhere.json"),
    (["--floor", "p.json", "--calibrate"], "give one of the two"),
    (["--resume", "m.jsonl", "-o", "m.jsonl"], "files of their own"),
    (["--resume", "m.jsonl", "--markdown", "./m.jsonl"], "files of their own"),
    (["--markdown", "tiny/config.json"], "overwritten"),
    (["-o", "none/m.json"], "cannot write none/m.json"),
    (["--switch", "logprobs=processed"], "the models' own logprobs"),
    (["--temperature", "0"], "no sampling"),
])  # fmt: skip
def test_a_matrix_that_cannot_be_is_refused_before_anything_runs(here: Path, options: list[str], said: str) -> None:
    with pytest.raises(CkptcheckError, match=said):
        parity(*SMALL, "--batch", "1", *options)
    assert not (here / "m.jsonl").exists()


def test_other_weights_are_not_gone_on_with(here: Path) -> None:
    small = [
        *SMALL,
        "--batch",
        "1",
        "--sequences",
        "1",
        "--data",
        "synthetic",
        "--decoding",
        "greedy",
        "--resume",
        "m.jsonl",
    ]
    parity(*small)
    parity(*small)
    held = load_file(here / "tiny" / "model.safetensors")
    save_file({name: value * 1.01 for name, value in held.items()}, here / "tiny" / "model.safetensors")
    with pytest.raises(CkptcheckError, match="another weights"):
        parity(*small)


def test_limits_of_the_matrix_are_flags(here: Path) -> None:
    faults.append("batch")
    wide = [*SMALL, "--batch", "3", "--sequences", "3", "--data", "synthetic", "--decoding", "greedy"]
    parity(*wide, code=1)
    parity(*wide, "--max-mult-prob-error", "1.2")


def test_a_fault_of_batches_fails_the_matrix(here: Path) -> None:
    faults.append("batch")
    said = parity(
        "matrix",
        "tiny",
        "--lengths",
        "30",
        "--batch",
        "1,3",
        "--repeats",
        "1",
        "--response",
        "6",
        "--sequences",
        "3",
        code=1,
    )
    assert "batch 3: mult_prob_error 1.105" in said
    assert "batch 1: mult_prob_error" not in said


def test_probes_are_reported_and_set_the_exit_code(here: Path) -> None:
    assert "PRB010" not in parity("probe", "tiny", "-v", "--temperature", "1")
    faults.append("shifted")
    said = parity("probe", "tiny", "--only", "semantics", "--temperature", "1", "--format", "json", code=1)
    report = json.loads(said)
    assert [finding["code"] for finding in report["findings"]] == ["PRB006"]
