"""The plan of a gate: what its stages run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.jobs.open_job import open_job
from ckptcheck.live.gate.gate_file import STAGES, GateRequest
from ckptcheck.live.gate.plan import Stage, plan_stages
from ckptcheck.live.gate.unseen import describe_unseen
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.live.gate.test_gate import JOB
from tests.paths import ROOT

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


DTYPES = {
    "float32, and vLLM's auto of a float32 checkpoint": (
        "bf16: false\ndtype: float32\n",
        ("float32", "bfloat16", "bfloat16", "float32"),
    ),
    "autocast to bfloat16": ("bf16: true\n", ("bfloat16", None, "bfloat16", "bfloat16")),
    "no word of the trainer": ("bf16: false\n", ("bfloat16", None, "bfloat16", "bfloat16")),
    "float16, which the trials do not take": ("fp16: true\n", (None, "bfloat16", "bfloat16", None)),
}
"""What the job says → dtype and engine-dtype of refit, dtype of the responses, dtype of their scores."""


@pytest.mark.parametrize("name", DTYPES)
def test_each_side_computes_in_the_jobs_dtype(name: str, tmp_path: Path) -> None:
    said, expected = DTYPES[name]
    model = CHECKPOINTS / "tiny-llama"
    job = f"model_name_or_path: {model}\ndataset_name: org/problems\nuse_vllm: true\nvllm_mode: colocate\n{said}"
    stages = plan(tmp_path, {}, job=job)
    refit = stages["refit"].calls[0].arguments
    record, score, _ = (call.arguments for call in stages["parity"].calls)
    assert (refit.get("dtype"), refit.get("engine_dtype"), record.get("dtype"), score.get("dtype")) == expected


def test_responses_are_sampled_with_generation_kwargs(tmp_path: Path) -> None:
    job = JOB + "generation_kwargs: {repetition_penalty: 1.1, presence_penalty: 0, top_k: 20, temperature: 0.7}\n"
    arguments = plan(tmp_path, {}, job=job)["parity"].calls[0].arguments
    sampling = ("temperature", "top_k", "repetition_penalty", "presence_penalty")
    assert [arguments.get(name) for name in sampling] == [0.7, 20, 1.1, None]


def test_a_gate_says_what_its_trials_do_not_repeat(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(JOB + "use_peft: true\ngeneration_kwargs: {min_p: 0.1}\nfp16: true\n", encoding="utf-8")
    job = open_job([str(path)], framework="trl")
    assert list(describe_unseen(job, ["preflight", "scan"])) == []
    (sentence, *_) = describe_unseen(job, ["refit", "parity", "first-step"])
    assert sentence.startswith("refit and parity started")
    assert sentence.endswith(" did not run; first-step did")
    assert list(describe_unseen(job, ["preflight", "refit"])) == [
        "refit started a trainer (transformers) and vllm of ckptcheck's own:"
        " TRL's processes, its own sync and its loss did not run; --first-step runs them",
        "the job's trainer computes in float16, float32 was tried",
        "the dtype of the job's engine is not known, float32 was tried",
        "not repeated: trainer.lora on (train.yaml:8), rollout.min_p 0.1 (train.yaml:9)",
    ]
    slime = open_job([str(ROOT / "docs/gate/slime/run.sh")], scan=False)
    assert next(describe_unseen(slime, ["refit"])).endswith("slime's processes, its own sync and its loss did not run")
