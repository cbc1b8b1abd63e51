"""The plan of a gate: what its stages run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def test_the_trial_clears_the_cache_where_the_job_does(tmp_path: Path) -> None:
    assert plan(tmp_path, {})["refit"].calls[0].arguments["clear_cache"] is True
    unscored = plan(tmp_path, {"refit": {"check_logprobs": False}})["refit"].calls[0].arguments
    assert "clear_cache" not in unscored, "an option without effect is refused"
    kept = plan(tmp_path, {"refit": {"clear_cache": False}})["refit"].calls[0].arguments
    assert kept["clear_cache"] is False
