"""The commands from end to end, with the fake engine and trainer in place of real ones."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import live
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.experiments.live_session import LiveSession
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.process.signal_guard import SignalGuard
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.rollouts import read_rollouts
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


def test_penalties_are_recorded_and_named(here: Path) -> None:
    penalties = ("--set", "presence-penalty=0.5", "--set", "repetition-penalty=1.1")
    parity("record", "tiny", "-o", "r.safetensors", *penalties, "--switch", "logprobs=processed", "--number", "2")
    parity("score", "r.safetensors", "tiny", "-o", "s.safetensors")
    sampling = read_rollouts(here / "s.safetensors").metadata.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, None, 1.1)
    assert "processed logprobs with a presence and repetition penalty" in parity("judge", "s.safetensors", code=1)


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


@pytest.mark.slow
def test_the_matrix_is_written_in_markdown(here: Path) -> None:
    options = [
        "matrix",
        "tiny",
        "--lengths",
        "30,600",
        "--response",
        "6",
        "--batch",
        "3",
        "--set",
        "sequences=2",
        "--repeats",
        "1",
    ]
    said = parity(*options, "--calibrate", "--markdown", "m.md", "--format", "json")
    report = json.loads(said)
    assert (report["verdict"], report["counts"]["error"]) == ("clean", 0)
    assert {section["title"].partition(",")[0] for section in report["sections"]} >= {"mult_prob_error", "Left out"}
    assert "Not measured: length 600: the model's context ends at 512 tokens" in (here / "m.md").read_text()


SMALL = ("matrix", "tiny", "--lengths", "30", "--repeats", "1", "--response", "6")


@pytest.mark.parametrize(("options", "said"), [
    (["--floor", "nowhere.json"], "cannot read the floor nowhere.json"),
    (["--floor", "p.json", "--calibrate"], "give one of the two"),
    (["--markdown", "tiny/config.json"], "overwritten"),
    (["-o", "none/m.json"], "cannot write none/m.json"),
    (["--switch", "logprobs=processed"], "the models' own logprobs"),
    (["--temperature", "0"], "no sampling"),
    (["--layouts", "tp0"], "tp0 is no parallel layout"),
    (["--layouts", "tp2tp4"], "tp2tp4 is no parallel layout"),
    (["--pairs", "transformers:megatron", "--set", "engine-mode=stock"], "--set engine-mode has no effect without a pair"),
    (["--pairs", "megatron:megatron"], "megatron:megatron is no pair"),
])  # fmt: skip
def test_a_matrix_that_cannot_be_is_refused_before_anything_runs(here: Path, options: list[str], said: str) -> None:
    with pytest.raises(CkptcheckError, match=said):
        parity(*SMALL, "--batch", "1", *options)


@pytest.mark.slow
def test_limits_of_the_matrix_are_flags(here: Path) -> None:
    faults.append("batch")
    wide = [*SMALL, "--batch", "3", "--set", "sequences=3", "--data", "synthetic", "--decoding", "greedy"]
    parity(*wide, code=1)
    parity(*wide, "--set", "max-mult-prob-error=1.2")


FEW = (
    "--batch",
    "1",
    "--set",
    "sequences=1",
    "--data",
    "synthetic",
    "--decoding",
    "greedy",
    "--repeats",
    "1",
    "--response",
    "6",
)


def test_lengths_of_the_guide_are_measured_where_the_model_has_the_room(here: Path) -> None:
    report = json.loads(parity("matrix", "tiny", *FEW, "--format", "json"))
    table, left_out = report["sections"]
    assert [row[0] for row in table["rows"]] == [100]
    assert left_out["lines"] == [
        "not measured: length 1,000: the model's context ends at 512 tokens (config.json)",
        "not measured: length 10,000: the model's context ends at 512 tokens (config.json)",
    ]


def test_lengths_that_nobody_named_stay_short_where_the_context_is_unknown(here: Path) -> None:
    config = json.loads((here / "tiny" / "config.json").read_text())
    del config["max_position_embeddings"]
    (here / "tiny" / "config.json").write_text(json.dumps(config))
    report = json.loads(parity("matrix", "tiny", *FEW, "--format", "json"))
    assert [row[0] for row in report["sections"][0]["rows"]] == [100]
    assert "does not say how many tokens the model takes: give --lengths" in report["sections"][1]["lines"][1]
    report = json.loads(parity("matrix", "tiny", *FEW, "--lengths", "30,300", "--format", "json"))
    assert [row[0] for row in report["sections"][0]["rows"]] == [30, 300]


@pytest.fixture
def starts(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is started: the name of a side, and its layout or ranks."""
    started: list[tuple[str, str]] = []

    def start_trainer(self: LiveSession, name: str, *, layout: ParallelLayout | None = None, **_: Any) -> FileTrainer:
        started.append((name, str(layout or "")))
        trainer = FileTrainer(here, here / "tiny")
        trainer.info = replace(trainer.info, name=name)
        return trainer

    def start_engine(checkpoint: Path, *, ranks: int, **named: Any) -> FakeServing:
        started.append(("vllm", str(ranks)))
        return engine(checkpoint, **named)

    monkeypatch.setattr(LiveSession, "start_trainer", start_trainer)
    monkeypatch.setattr(registry, "ENGINES", {"vllm": start_engine})
    return started


@pytest.mark.slow
def test_layouts_are_an_axis_of_the_matrix(here: Path, starts: list[tuple[str, str]]) -> None:
    options = [
        "matrix",
        "tiny",
        "--lengths",
        "30",
        *FEW,
        "--pairs",
        "transformers:vllm,megatron:vllm",
        "--directions",
        "engine",
    ]
    said = parity(*options, "--layouts", "tp1,tp2,pp2", "--calibrate", "--format", "json", "--markdown", "m.md")
    table = json.loads(said)["sections"][0]
    cells = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert [cell["layout"] for cell in cells] == ["tp1", "tp2", "pp2"]
    assert [cell["megatron:vllm"] is not None for cell in cells] == [True, True, True]
    assert [cell["transformers:vllm"] is not None for cell in cells] == [True, True, False], (
        "nothing of it is split by pp2"
    )
    assert starts == [
        ("vllm", "1"), ("transformers", ""), ("megatron", ""),
        ("vllm", "2"), ("transformers", ""), ("megatron", "TP2"),
        ("vllm", "1"), ("megatron", "PP2"),
    ]  # fmt: skip
    titles = [section["title"] for section in json.loads(said)["sections"]]
    assert "The floor of megatron:vllm pp2" in titles
    assert "| 30 | Synthetic | Greedy | 1 | tp2 |" in (here / "m.md").read_text()


def test_a_fault_of_one_layout_is_named(here: Path, starts: list[tuple[str, str]]) -> None:
    def off(checkpoint: Path, *, ranks: int, **named: Any) -> FakeServing:
        faults[:] = ["weights"] if ranks == 2 else []
        return engine(checkpoint, **named)

    registry.ENGINES["vllm"] = off  # type: ignore[assignment]
    said = parity("matrix", "tiny", "--lengths", "30", *FEW, "--layouts", "tp1,tp2", "--format", "json", code=1)
    (finding,) = json.loads(said)["findings"]
    assert finding["message"].startswith(
        "transformers:vllm, 30 tokens, synthetic data, greedy, batch 1, tp2: mult_prob_error"
    )


def test_a_layout_that_does_not_start_costs_only_its_own_cells(here: Path, starts: list[tuple[str, str]]) -> None:
    def start(checkpoint: Path, *, ranks: int, **named: Any) -> FakeServing:
        if ranks == 3:
            raise CkptcheckError("4 heads cannot be divided by 3")
        return engine(checkpoint, **named)

    registry.ENGINES["vllm"] = start  # type: ignore[assignment]
    report = json.loads(parity("matrix", "tiny", "--lengths", "30", *FEW, "--layouts", "tp3,tp1", "--format", "json"))
    assert [row[4] for row in report["sections"][0]["rows"]] == ["tp1"]
    assert report["sections"][1]["lines"] == ["not measured: tp3: 4 heads cannot be divided by 3"]
    with pytest.raises(CkptcheckError, match="no layout could be started: 4 heads cannot be divided by 3"):
        parity("matrix", "tiny", "--lengths", "30", *FEW, "--layouts", "tp3")


@pytest.mark.slow
def test_two_trainers_are_compared_without_an_engine(here: Path, starts: list[tuple[str, str]]) -> None:
    options = [
        "matrix",
        "tiny",
        "--lengths",
        "30",
        "--batch",
        "1,3",
        "--pairs",
        "transformers:megatron",
        "--repeats",
        "1",
    ]
    report = json.loads(parity(*options, "--response", "6", "--layouts", "tp2", "--calibrate", "--format", "json"))
    assert [name for name, _ in starts] == ["transformers", "megatron"]
    assert ("megatron", "TP2") in starts
    assert report["verdict"] == "clean"
    table = report["sections"][0]
    assert table["columns"][5] == "transformers:megatron"
    assert all(row[5] == pytest.approx(1, abs=1e-6) for row in table["rows"])


def test_an_interrupted_matrix_shows_the_cells_that_it_has(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(FakeServing):
        asked = 0

        def generate(self, *arguments: Any, **named: Any) -> Any:
            Impatient.asked += 1
            if Impatient.asked == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().generate(*arguments, **named)

    def start(checkpoint: Path, *, switches: Any, context_len: int, **_: Any) -> FakeServing:
        return Impatient(load_file(checkpoint / "model.safetensors"), switches=switches, length=context_len)

    monkeypatch.setattr(registry, "ENGINES", {"vllm": start})
    monkeypatch.setattr(SignalGuard, "was_interrupted", False)
    options = ["matrix", "tiny", "--lengths", "30,40,50", *FEW, "--directions", "engine"]
    report = json.loads(parity(*options, "--format", "json", "--markdown", "m.md", code=130))
    assert report["verdict"] == "incomplete"
    assert report["error"] == "could not finish the matrix: interrupted, after 2 of 3 measurements"
    assert [row[0] for row in report["sections"][0]["rows"]] == [30, 40]
    assert "The matrix did not finish: interrupted, after 2 of 3 measurements" in (here / "m.md").read_text()


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
        "--set",
        "sequences=3",
        code=1,
    )
    assert "batch 3: mult_prob_error 1.105" in said
    assert "batch 1: mult_prob_error" not in said


@pytest.mark.slow
def test_probes_are_reported_and_set_the_exit_code(here: Path) -> None:
    assert "inductor" not in parity("probe", "tiny", "-v", "--temperature", "1")
    asked = ("--only", "semantics", "--only", "routing")
    assert "--only routing: the model has no experts" in parity("probe", "tiny", *asked, "--temperature", "1", code=2)
    faults.append("shifted")
    said = parity("probe", "tiny", "--only", "semantics", "--temperature", "1", "--format", "json", code=1)
    report = json.loads(said)
    assert [finding["code"] for finding in report["findings"]] == ["PRB005"]
