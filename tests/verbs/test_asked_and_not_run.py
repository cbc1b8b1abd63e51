"""No verdict is clean where what the user asked for by name met nothing: exit code 2, and the report says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.linter.report import Report
from ckptcheck.rollouts import write_rollouts
from ckptcheck.runs.history.record import Record, SyncRecord
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.rollout_cases import draw_rollouts
from tests.factories.saved_runs import write_trainer_save

TINY, QUANTIZED, ADAPTER = (CHECKPOINTS / name for name in ("tiny-llama", "tiny-w4a16", "tiny-lora"))
JOB = "defaults: null\nalgorithm:\n  adv_estimator: grpo\nactor_rollout_ref:\n  model:\n    path: nowhere/tiny\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A record of syncs without identities and versions, rollouts without versions and experts, a run of two saves, a job."""
    Record(tmp_path / "record.jsonl").append(SyncRecord(step=10, run="one", sent={"a": "0" * 32}))
    write_rollouts(draw_rollouts(sequences=8), tmp_path / "rollouts.safetensors")
    for step in (10, 20):
        write_trainer_save(tmp_path / "run", step)
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return tmp_path


def judge(files: Path, **asked: Any) -> Any:
    return ckptcheck.judge(files / "rollouts.safetensors", **asked)


CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "consumers of a plain model": (lambda _: ckptcheck.scan(TINY, consumers="vllm"), "nothing here is quantized"),
    "consumers of a Megatron run": (
        lambda _: ckptcheck.scan(MEGATRON / "dense", consumers="vllm"),
        "nothing here is quantized",
    ),
    "consumers of an adapter": (lambda _: ckptcheck.scan(ADAPTER, consumers="vllm"), "nothing here is quantized"),
    "a consumer that does not know the method": (
        lambda _: ckptcheck.scan(CHECKPOINTS / "tiny-fp8", consumers="slime"),
        "--consumers could not tell about slime",
    ),
    "the base of a whole model": (
        lambda _: ckptcheck.scan(TINY, base=TINY),
        "--base names the base model of an adapter, and there is no adapter",
    ),
    "a rule that does not apply": (
        lambda _: ckptcheck.scan(TINY, select=["ADP001", "CFG002"]),
        "--select ADP001: it does not apply to this target",
    ),
    "a rule of a job that does not apply": (
        lambda files: ckptcheck.preflight(files / "job.yaml", framework="verl", select=["JOB036", "JOB024"]),
        "--select JOB036: it does not apply to this target",
    ),
    "a job of another framework": (
        lambda files: ckptcheck.preflight(files / "job.yaml", framework="nemo-rl"),
        "--framework nemo-rl: none of its settings is in the job",
    ),
    "a record without identities": (
        lambda files: ckptcheck.series(files / "run", history=files / "record.jsonl"),
        "SER013: the record has no identity",
    ),
    "a save beside a record without identities": (
        lambda files: ckptcheck.history(files / "record.jsonl", saved=TINY),
        "HIS019: the record does not name what was sent",
    ),
    "rollouts beside a record without versions": (
        lambda files: ckptcheck.history(files / "record.jsonl", rollouts=files / "rollouts.safetensors"),
        "HIS020: the record has no weight versions",
    ),
    "a record of other versions": (
        lambda files: judge(files, history=files / "record.jsonl"),
        "--history knows no weight version that a file names",
    ),
    "a checkpoint without a tokenizer": (
        lambda files: judge(files, checkpoint=TINY),
        "--checkpoint has nothing to check here",
    ),
    "a replay without experts": (lambda files: judge(files, replay=True), "--replay needs the experts of both sides"),
}


@pytest.mark.parametrize(("run", "reason"), CASES.values(), ids=list(CASES))
def test_what_was_asked_for_and_met_nothing_is_incomplete(run: Callable[[Path], Any], reason: str, files: Path) -> None:
    report = run(files)
    assert (report.verdict, report.exit_code("never")) == ("incomplete", 2)
    assert reason in str((report.error, *(f"{code}: {why}" for code, why in report.crashed)))


def test_one_target_that_takes_what_was_asked_for_is_enough(files: Path) -> None:
    """Whoever scans a folder of models asks for what some of them have."""
    plain, quantized = ckptcheck.scan([TINY, QUANTIZED], consumers="vllm", select=["QNT001", "CFG002"])
    assert [plain.verdict, quantized.verdict] == ["clean", "clean"]
    assert [section.lines for section in plain.sections if section.title == "Consumers"] == [
        ("nothing in it is quantized: there was nothing to ask",)
    ]
    assert [dict(report.skipped) for report in (plain, quantized)] == [
        {"QNT001": "it does not apply to this target"},
        {},
    ]
    both: list[Report] = [*ckptcheck.scan([TINY, ADAPTER], base=TINY)]
    assert [report.verdict for report in both] == ["clean", "clean"]


def test_a_rule_that_is_named_and_left_out_was_not_asked_for() -> None:
    assert ckptcheck.scan(TINY, select=["ADP001", "CFG002"], ignore=["ADP001"]).verdict == "clean"


def test_a_previous_version_needs_a_tensor_in_common() -> None:
    with pytest.raises(CkptcheckError, match="has no tensor in common"):
        ckptcheck.diff(TINY, TINY, previous=ADAPTER)


def test_logs_take_no_option_about_tokens(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("{'loss': 0.1, 'step': 1}\n{'loss': 0.1, 'step': 2}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="--exact and --floor have no effect on logs"):
        ckptcheck.judge(log, against=log, exact=True, floor=tmp_path / "floor")
