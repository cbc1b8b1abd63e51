"""Python scripts that build a job's command: the command is read, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck import preflight
from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.open_job import open_job

LAUNCHER = """
import os
from dataclasses import dataclass

import typer

import miles.utils.external_utils.command_utils as U


@dataclass
class Arguments(U.ExecuteTrainConfig):
    mode: str = "normal"
    gpus: int = 8
    model: str = "Qwen3-4B"
    extra_args: str = ""


def execute(args: Arguments):
    checkpoint_args = f"--hf-checkpoint /models/{args.model} "
    rollout_args = (
        "--rollout-batch-size 32 "
        "--n-samples-per-prompt 8 "
        f"--rollout-max-response-len {100 if args.mode == 'debug' else 8192} "
        "--rollout-temperature 0.7 "
    )
    if args.gpus > 4:
        rollout_args += "--tensor-model-parallel-size 2 "
    else:
        rollout_args += "--tensor-model-parallel-size 1 "
    if U.has_nvlink():
        rollout_args += "--sglang-kv-cache-dtype fp8_e4m3 "
    U.execute_train(
        train_args=f"{checkpoint_args} {rollout_args} {U.get_default_wandb_args(__file__)} {args.extra_args} ",
        num_gpus_per_node=args.gpus,
        megatron_model_type="qwen3-4B",
        extra_env_vars={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"},
    )


@U.dataclass_cli
def main(args: Arguments):
    execute(args)


if __name__ == "__main__":
    typer.run(main)
"""
MODEL = """
def model_args(nlayers=None):
    nlayers = nlayers if nlayers is not None else 36
    return f"--num-layers {nlayers} --num-experts 128 " "--attention-dropout 0.0 --hidden-dropout 0.0"
"""
SIBLING = """
from model_args_utils import load_sibling_model_args

def model_args():
    return load_sibling_model_args(__file__, "big", nlayers=5)
"""


@pytest.mark.parametrize("in_shell", [False, True])
def test_the_function_of_slime_and_miles(in_shell: bool, tmp_path: Path) -> None:
    models = tmp_path / "scripts/models"
    models.mkdir(parents=True)
    (tmp_path / "scripts/run.py").write_text(LAUNCHER)
    if in_shell:
        (models / "qwen3-4B.sh").write_text("MODEL_ARGS=(--num-layers 36 --num-experts 128)\n")
    else:
        (models / "big.py").write_text(MODEL)
        (models / "qwen3-4B.py").write_text(SIBLING)
    job = open_job([str(tmp_path / "scripts/run.py")], framework="slime")
    assert job.gaps == {}
    assert job.describe("checkpoint.model") == "/models/Qwen3-4B (run.py:19)"
    assert job.describe("rollout.temperature") == "0.7 (run.py:24)"
    assert job.describe("rollout.response_length") == "8192 (run.py:23)"
    assert job.describe("trainer.tp") == "2 (run.py:27)"
    assert job.flag("trainer.moe") is True
    assert job.text("engine.logprobs") == "raw"
    kv_cache = job["engine.kv_cache_dtype"]
    assert (kv_cache.status, kv_cache.source) == (
        "unresolved",
        "set under a condition: U.has_nvlink(…)",
    )


def test_a_model_that_is_not_here_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(LAUNCHER)
    report = preflight(tmp_path / "run.py", framework="slime")
    assert (report.verdict, report.passed) == ("incomplete", ())
    assert report.error == (
        "could not read the arguments at run.py:32: scripts/models/qwen3-4B is not here, with the model's flags"
    )


@pytest.mark.parametrize(
    "text",
    [
        'import subprocess\nT = 0.7\nsubprocess.run(["python", "-m", "verl.trainer.main_ppo", f"{K}={T}", *REST], check=True)',
        'import os\nos.system(f"cd x && python3 -m verl.trainer.main_ppo {K}=0.7 {\' \'.join(REST)} 2>&1 | tee log")',
        'from subprocess import Popen\nC = ["bash", "-c", f"python -m verl.trainer.main_ppo {K}=0.7 " + " ".join(REST)]\nPopen(C)',
    ],
)  # fmt: skip
def test_a_function_that_runs_a_command(text: str, tmp_path: Path) -> None:
    rest = 'K = "actor_rollout_ref.rollout.temperature"\nREST = ["actor_rollout_ref.rollout.name=vllm"]\n'
    (tmp_path / "run.py").write_text(rest + text)
    job = open_job([str(tmp_path / "run.py")])
    assert (job.framework, job.number("rollout.temperature"), job.engine) == ("verl", 0.7, "vllm")


def test_a_script_that_starts_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text('import os\nos.system("ls")\n')
    with pytest.raises(CkptcheckError, match="starts no job that it knows"):
        open_job([str(tmp_path / "run.py")])


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("python -m recipe.dapo.main_dapo data.x=1 actor_rollout_ref.rollout.name=vllm", "verl"),
        ("python my_main.py actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path=x", "verl"),
        ("python -m mine.main_dapo trainer.policy.model.path=x generator.inference_engine.backend=vllm", "SkyRL"),
        ("python -m mine.main_dapo x=1", None),
        ("echo main_ppo", None),
    ],
)
def test_a_framework_is_claimed_by_its_module_or_keys(line: str, framework: str | None, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(line + "\n")
    if framework is None:
        with pytest.raises(CkptcheckError, match="starts no training job"):
            open_job([str(tmp_path / "run.sh")])
    else:
        assert open_job([str(tmp_path / "run.sh")]).framework == framework
