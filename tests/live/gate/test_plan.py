"""The plan of a gate: what its stages run, and when parity takes what the trial has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.jobs.open_job import open_job
from ckptcheck.live.gate.gate_file import STAGES, GateRequest
from ckptcheck.live.gate.plan import Stage, plan_stages
from tests.live.gate.test_gate import JOB

FUNCTIONS = {name: getattr(ckptcheck, name) for name in ("scan", "refit", "record_rollouts", "score_rollouts", "judge")}


def plan(
    folder: Path, options: Mapping[str, Mapping[str, Any]], stages: tuple[str, ...] = STAGES, job: str = JOB
) -> Mapping[str, Stage]:
    (folder / "train.yaml").write_text(job, encoding="utf-8")
    opened = open_job([str(folder / "train.yaml")], framework="trl", framework_version="1.16.0")
    request = GateRequest((str(folder / "train.yaml"),), stages=stages, model="tiny", options=options)
    return {stage.name: stage for stage in plan_stages(opened, request, FUNCTIONS, folder)}


def test_the_trial_records_what_parity_judges(tmp_path: Path) -> None:
    stages = plan(tmp_path, {"refit": {"steps": 2, "transport": "reload"}, "parity": {"number": 4, "max_kl": 0.1}})
    (trial,) = stages["refit"].calls
    record, score, judge = stages["parity"].calls
    assert trial.arguments["rollouts"] == {"output": str(trial.output), "number": 4}
    assert trial.arguments["switch"] == record.arguments["switch"], "the job's own settings of its engine"
    assert trial.output == score.output
    assert judge.arguments["*"] == [str(score.output)]
    assert (record.made_by, score.made_by, judge.made_by) == (trial, trial, None)


@pytest.mark.parametrize(
    "options",
    [
        {"refit": {"switch": ["prefix_cache=off"]}},
        {"refit": {"quantize": "fp8"}},
        {"refit": {"engine_tp": 2}},
        {"refit": {"engine_ep": 2, "engine_tp": 2}, "parity": {"engine_tp": 2}},
        {"refit": {"check_weights": False}},
        {"refit": {"trainer": "megatron"}},
        {"refit": {"rollouts": "mine.safetensors"}},
        {"parity": {"dtype": "bfloat16"}},
        {"parity": {"engine_python": "/opt/venv/bin/python"}},
        {"parity": {"switch": ["head_fp32=on"]}},
        {"parity": {"full": 2}},
        {"parity": {"temperature": 0.7}},
        {"parity": {"head_fp32": True}},
    ],
    ids=str,
)
def test_parity_starts_its_own_where_it_asks_for_something_else(
    tmp_path: Path, options: Mapping[str, Mapping[str, Any]]
) -> None:
    stages = plan(tmp_path, options)
    assert stages["refit"].calls[0].output is None
    assert "switch" not in stages["refit"].calls[0].arguments or "switch" in options["refit"]
    assert all(call.made_by is None for call in stages["parity"].calls)


@pytest.mark.parametrize("stage", ["refit", "parity"])
def test_a_stage_alone_is_planned_as_ever(tmp_path: Path, stage: str) -> None:
    calls = plan(tmp_path, {}, stages=(stage,))[stage].calls
    assert all(call.made_by is None and "rollouts" not in call.arguments for call in calls)


def test_the_trial_clears_the_cache_where_the_job_does(tmp_path: Path) -> None:
    assert plan(tmp_path, {})["refit"].calls[0].arguments["clear_cache"] is True
    unscored = plan(tmp_path, {"refit": {"check_logprobs": False}})["refit"].calls[0].arguments
    assert "clear_cache" not in unscored, "an option without effect is refused"
    kept = plan(tmp_path, {"refit": {"clear_cache": False}})["refit"].calls[0].arguments
    assert kept["clear_cache"] is False
