"""``gate --first-step`` runs the job's own command for one step, judges what that logged, and says where it could not."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import launch, verl_grpo
from jobs.tiny_policy import write_policy

from ckptcheck.live.gate.launch_words import write_shell_file
from tests.conftest import needs_engine
from tests.live.gate.test_gate import Outcome, gate
from tests.paths import ROOT

DOUBLE = ROOT / "tests/doubles/one_step_job.py"
VERL = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm trainer.total_training_steps=100"
SCRIPT = f'#!/bin/bash\nset -euo pipefail\nARGS=({VERL})\npython3 -m verl.trainer.main_ppo "${{ARGS[@]}}" 2>&1 | tee job.log\n'
ASKED = ("--stages", "preflight", "--first-step")


def write_program(folder: Path, path: str, framework: str) -> None:
    """Write a Python file that runs the double, under a name that a framework's program has."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.doubles.one_step_job import run_job\n"
        f"run_job({framework!r}, sys.argv[1:])\n",
        encoding="utf-8",
    )
    file.chmod(0o755)


def run_gate(folder: Path, *arguments: str, **environment: str) -> Outcome:
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return gate(folder, *arguments, PATH=path, **environment)


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    """A job of verl whose program is the double."""
    write_program(tmp_path, "verl/trainer/main_ppo.py", "verl")
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def test_a_job_runs_only_where_the_user_asks_for_it(verl: Path) -> None:
    outcome = run_gate(verl, "run.sh", "--stages", "preflight")
    assert outcome.code == 0
    assert not (verl / "words.txt").exists()


def test_the_jobs_own_command_runs_for_one_step(verl: Path) -> None:
    outcome = run_gate(verl, "run.sh", "trainer.nnodes=1", *ASKED)
    assert (outcome.code, outcome.stages["first-step"]) == (0, "clean"), outcome.report
    words = (verl / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[:3] == VERL.split()
    assert words[3:5] == ["trainer.nnodes=1", "++trainer.total_training_steps=2"]
    assert f"++trainer.default_local_dir={verl}/run.gate/first-step/output" in words
    table = next(section for section in outcome.report["sections"] if section["title"] == "The job's own first step")
    assert table["columns"] == ["the job's own number", "step 1", "step 2"]
    assert [row[0] for row in table["rows"]] == ["actor/pg_loss", "actor/grad_norm", "rollout_corr/k3_kl"]
    assert {"HIS002", "HIS022", "HIS024"} <= {*outcome.report["passed"]}
    assert (verl / "run.gate/first-step/log.txt").read_text(encoding="utf-8").startswith("(TaskRunner")
    assert not (verl / "run.gate/first-step/output").exists()


FAULTS = {
    "nan": ("HIS022", "step 0: the trainer's loss or gradient is no finite number"),
    "wide gap": ("HIS024", "step 0: rollout_corr/k3_kl is 0.045 (0.3 nats a token) from the start"),
    "unchanged": ("HIS002", "step 1: the trainer sent all 4 tensors as at step 0"),
}
"""What the job does → the rule that says so, and how its message begins."""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_step_leaves_is_judged(verl: Path, fault: str) -> None:
    outcome = run_gate(verl, "run.sh", *ASKED, FAULT=fault)
    code, message = FAULTS[fault]
    assert [(finding["code"]) for finding in outcome.report["findings"]] == [code]
    assert outcome.report["findings"][0]["message"].startswith(message)
    assert outcome.code == (outcome.report["findings"][0]["severity"] == "error")


def test_a_step_without_a_gradient_moves_nothing(verl: Path) -> None:
    outcome = run_gate(verl, "run.sh", *ASKED, FAULT="no gradient")
    assert (outcome.code, outcome.report["findings"]) == (0, [])
    assert "not seen: whether a sync brings new weights" in outcome.report["sections"][1]["lines"][-1]


UNCHECKED = {
    "fails": "its command ended with exit code 1: RuntimeError: CUDA out of memory",
    "goes on": "it did not end after its first step, and was ended after 5",
    "no record": "no sync was seen: the engine does not run below this command, or its Python cannot import ckptcheck",
}
"""What the job does → why the step is not checked."""


@pytest.mark.parametrize("fault", UNCHECKED)
def test_a_step_that_could_not_be_checked_is_incomplete(verl: Path, fault: str) -> None:
    outcome = run_gate(verl, "run.sh", *ASKED, FAULT=fault)
    assert outcome.code == 2
    assert outcome.stages["first-step"].startswith(f"not checked: {UNCHECKED[fault]}")


def test_a_job_that_does_not_get_the_words_is_ended(verl: Path) -> None:
    """Another shell reads no BASH_ENV."""
    launch = "sh -c 'exec python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm'"
    (verl / "run.sh").write_text(f"#!/bin/bash\nenv BASH_ENV= {launch}\n", encoding="utf-8")
    outcome = run_gate(verl, "run.sh", *ASKED)
    assert outcome.code == 2
    assert "the options for one step did not reach its command" in outcome.stages["first-step"]


def test_the_deadline_ends_a_step(verl: Path) -> None:
    (verl / "run.sh").write_text(SCRIPT + "echo $$ > shell\nexec tail -f /dev/null\n", encoding="utf-8")
    outcome = run_gate(verl, "run.sh", *ASKED, "--deadline", "12 s")
    assert outcome.code == 2
    assert outcome.stages["first-step"] == "not checked: it was stopped at the deadline of 12 seconds"
    assert "HIS024" in outcome.report["passed"], "what it had logged by then is judged"
    assert not Path(f"/proc/{(verl / 'shell').read_text(encoding='utf-8').strip()}").exists()


REAL = """\
import os
from functools import partial
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation
from jobs.faults import FaultPlan
from jobs.trl_grpo import PROMPTS, put_faults, skip_when_training_begins, vary
from ckptcheck.live.runtime.worker.ckptcheck_worker.vllm_plain import apply_plain_mode

apply_plain_mode()  # vLLM's packed weights on a CPU take no update
vllm_generation.LLM = partial(vllm_generation.LLM, enforce_eager=True, dtype="float32")
config = GRPOConfig(
    output_dir="out", use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=0.1, vllm_max_model_length=128,
    max_completion_length=16, num_generations=4, per_device_train_batch_size=4, gradient_accumulation_steps=1, max_steps=500,
    learning_rate=1e-3, warmup_steps=100, bf16=False, use_cpu=True, gradient_checkpointing=False, seed=0,
    model_init_kwargs={"dtype": "float32"}, logging_steps=50,
)
prompts = Dataset.from_dict({"prompt": [*PROMPTS] * 50})
trainer = GRPOTrainer(model="tiny", reward_funcs=vary, args=config, train_dataset=prompts)
plan = FaultPlan.parse(os.environ["FAULT"].split())
put_faults(trainer, plan)
trainer.add_callback(skip_when_training_begins(trainer, plan))
trainer.train()
"""
REAL_FAULTS = {"": [], "1=lost:model.layers.1.mlp.down_proj.weight": ["HIS007", "HIS024"]}
"""What the job commits at its second sync → the rules that say so."""


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("fault", REAL_FAULTS)
def test_a_real_job_of_trl_with_vllm(fault: str, tmp_path: Path) -> None:
    python = needs_engine("trl-cpu").python
    (tmp_path / "tiny").mkdir()
    write_policy(tmp_path / "tiny")
    (tmp_path / "train.py").write_text(REAL, encoding="utf-8")
    (tmp_path / "run.sh").write_text(
        "set -e\nexport N=1\naccelerate launch --cpu train.py 2>&1 | tee log\n", encoding="utf-8"
    )
    variables = dict(launch.command_of("trl_grpo")[1])
    variables |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "FAULT": fault}
    outcome = gate(tmp_path, "run.sh", *ASKED, **variables)
    assert sorted(finding["code"] for finding in outcome.report["findings"]) == REAL_FAULTS[fault], outcome.report
    assert outcome.code == (1 if fault else 0)
    titles = [section["title"] for section in outcome.report["sections"]]
    assert titles == ["Stages of the gate", "The job's own first step", "weight syncs"]
    own = outcome.report["sections"][1]
    assert [row[0] for row in own["rows"]] == ["loss", "grad_norm", "sampling/sampling_logp_difference/mean"]
    assert own["rows"][2][1] < 1e-5
    assert len(outcome.report["sections"][2]["rows"]) == 2


@pytest.mark.engine
@pytest.mark.matrix
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("fault", ["", "1=lost:*.1.mlp.down_proj.weight"])
def test_a_real_job_of_verl_with_vllm(fault: str, tmp_path: Path) -> None:
    """Ray, FSDP2 and vLLM's server: the gate's words end the job after a step, and vLLM watches itself."""
    python = needs_engine("verl-cpu").python
    (tmp_path / "policy").mkdir()
    write_policy(tmp_path / "policy")
    verl_grpo.write_prompts(tmp_path / "prompts.jsonl", 200)
    words = "".join(f"  {shlex.quote(f'{key}={value}')}\n" for key, value in verl_grpo.overrides(tmp_path, 100).items())
    launch_line = 'python3 -m verl.trainer.main_ppo "${ARGS[@]}" 2>&1 | tee log'
    (tmp_path / "run.sh").write_text(f"set -eo pipefail\nARGS=(\n{words})\n{launch_line}\n", encoding="utf-8")
    variables = dict(launch.command_of("verl_grpo")[1]) | verl_grpo.VARIABLES
    variables |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "VERL_GRPO_FAULTS": fault}
    outcome = gate(tmp_path, "run.sh", *ASKED, **variables)
    found = {finding["code"]: finding["severity"] for finding in outcome.report["findings"]}
    assert found == ({"HIS001": "error", "HIS024": "info"} if fault else {}), outcome.report
    assert outcome.code == (1 if fault else 0)
    own = next(section for section in outcome.report["sections"] if section["title"] == "The job's own first step")
    assert [row[0] for row in own["rows"]] == ["actor/pg_loss", "actor/grad_norm", "rollout_corr/k3_kl"]


TRL = "model_name_or_path: tiny\ndataset_name: org/problems\nuse_vllm: true\nvllm_mode: colocate\nmax_steps: 100\n"
NEMO = "policy: {generation: {backend: vllm}, dtensor_cfg: {enabled: true}}\ngrpo: {max_num_steps: 100}\n"


def test_a_configuration_of_trl_runs_by_its_command(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(TRL, encoding="utf-8")
    outcome = run_gate(tmp_path, "train.yaml", *ASKED)
    reason = "trl is not on the PATH (run the gate in the environment of the job)"
    assert (outcome.code, outcome.stages["first-step"]) == (2, f"not checked: {reason}")
    write_program(tmp_path, "bin/trl", "trl")
    outcome = run_gate(tmp_path, "train.yaml", *ASKED)
    assert outcome.stages["first-step"] == "clean"
    words = (tmp_path / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[:4] == ["grpo", "--config", "train.yaml", "--max_steps=2"]


SENDERS = {
    "ray": "ray job submit --no-wait -- bash -c 'python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm'",
    "ssh": "ssh node1 'cd /job && python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm'",
    "docker": "docker run --gpus all image bash inner.sh",
}


@pytest.mark.parametrize("sender", SENDERS)
def test_a_job_that_is_given_elsewhere_is_not_started(verl: Path, sender: str) -> None:
    """What runs there does not get the words of one step: the whole job would start."""
    (verl / "run.sh").rename(verl / "inner.sh")
    (verl / "run.sh").write_text(f"{SENDERS[sender]}\n", encoding="utf-8")
    write_program(verl, f"bin/{sender}", "verl")
    outcome = run_gate(verl, "run.sh", *ASKED)
    reason = f"run.sh gives the job to another machine or container, by {sender}"
    assert (outcome.code, outcome.stages["first-step"]) == (2, f"not checked: {reason}")
    assert not (verl / "words.txt").exists()


TRL_DOUBLE = """\
import sys
from transformers.trainer import Trainer
sys.path.insert(0, {root!r})
from tests.doubles.one_step_job import run_job

class TrlParser:
    def __init__(self, classes): pass
    def parse_args_and_config(self): run_job("trl", sys.argv[1:])

class GRPOConfig:
    def __init__(self, **values): vars(self).update(values)

class GRPOTrainer(Trainer):
    def train(self): run_job("trl", [f"--{{name}}={{value}}" for name, value in vars(self.args).items()])
"""
TRAINER = "class Trainer:\n    def __init__(self, model, args):\n        self.args = args\n"
PARSING = "from trl import GRPOConfig, TrlParser\nTrlParser((GRPOConfig,)).parse_args_and_config()\n"
IN_CODE = """\
import sys
from trl import GRPOConfig, GRPOTrainer
assert sys.argv == ["train.py"] and __name__ == "__main__"
config = GRPOConfig(max_steps=100, use_vllm=True, vllm_mode="colocate", output_dir="out", bf16=False, push_to_hub=True)
GRPOTrainer("tiny", args=config).train()
"""


@pytest.fixture
def trl(tmp_path: Path) -> Path:
    """A folder with stand-ins for TRL and transformers beside the scripts of jobs."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/__init__.py").touch()
    (tmp_path / "transformers/trainer.py").write_text(TRAINER, encoding="utf-8")
    (tmp_path / "trl.py").write_text(TRL_DOUBLE.format(root=str(ROOT)), encoding="utf-8")
    return tmp_path


def test_a_script_that_parses_its_command_line_gets_the_words(trl: Path) -> None:
    (trl / "train.py").write_text(PARSING, encoding="utf-8")
    outcome = run_gate(trl, "train.py", "use_vllm=true", "model_name_or_path=tiny", *ASKED)
    assert outcome.stages["first-step"] == "clean"
    words = (trl / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[:3] == ["--use_vllm=true", "--model_name_or_path=tiny", "--max_steps=2"]


@pytest.mark.parametrize("job", ["train.py", "run.sh", "gate.toml"])
def test_a_configuration_in_python_is_set_where_the_trainer_is_made(trl: Path, job: str) -> None:
    (trl / "train.py").write_text(IN_CODE, encoding="utf-8")
    (trl / "run.sh").write_text("python3 train.py 2>&1 | tee log\n", encoding="utf-8")
    (trl / "gate.toml").write_text(
        'job = "train.py"\nstages = ["preflight", "first-step"]\n[first-step]\ncommand = "env N=1 python3 train.py"\n',
        encoding="utf-8",
    )
    outcome = run_gate(trl, job, *ASKED)
    assert outcome.stages["first-step"] == "clean", outcome.report
    words = (trl / "words.txt").read_text(encoding="utf-8").splitlines()
    assert {"--max_steps=2", "--push_to_hub=False", "--bf16=False", "--use_vllm=True", "--report_to=none"} <= {*words}


def test_a_job_of_nemo_rl_runs_by_the_users_command(tmp_path: Path) -> None:
    write_program(tmp_path, "examples/run_grpo.py", "nemo-rl")
    (tmp_path / "grpo.yaml").write_text(NEMO, encoding="utf-8")
    outcome = run_gate(tmp_path, "grpo.yaml", *ASKED)
    assert outcome.code == 2
    reason = "grpo.yaml is a configuration: name the script that starts the job, or command in [first-step]"
    assert outcome.stages["first-step"] == f"not checked: {reason}"
    (tmp_path / "gate.toml").write_text(
        'job = "grpo.yaml"\nstages = ["preflight", "first-step"]\n'
        '[first-step]\ncommand = "python3 examples/run_grpo.py --config grpo.yaml"\n',
        encoding="utf-8",
    )
    outcome = run_gate(tmp_path, "gate.toml")
    assert outcome.stages["first-step"] == "clean"
    words = (tmp_path / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[:3] == ["--config", "grpo.yaml", "++grpo.max_num_steps=2"]


def test_variables_and_arguments_of_a_gate_file_reach_the_job(verl: Path) -> None:
    (verl / "run.sh").write_text(
        f"python3 -m verl.trainer.main_ppo {VERL} trainer.project_name=$NAME $1\n", encoding="utf-8"
    )
    (verl / "gate.toml").write_text(
        'job = "run.sh"\nstages = ["preflight", "first-step"]\n[preflight]\nenv = ["NAME=mine", "1=trainer.nnodes=1"]\n',
        encoding="utf-8",
    )
    assert run_gate(verl, "gate.toml").stages["first-step"] == "clean"
    words = (verl / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[3:5] == ["trainer.project_name=mine", "trainer.nnodes=1"]


def test_a_command_that_is_none_is_refused(verl: Path) -> None:
    (verl / "gate.toml").write_text('job = "run.sh"\n[first-step]\ncommand = 3\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "ckptcheck", "gate", "gate.toml"], cwd=verl, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "[first-step] command is not a command line" in done.stderr


def test_a_framework_without_a_first_step_is_incomplete(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs/gate/slime/run.sh", tmp_path)
    outcome = gate(tmp_path, "run.sh", "--stages", "first-step")
    assert outcome.code == 2
    reason = "ckptcheck does not know how slime runs for one step; start it, and ckptcheck refit history LOG judges what it prints"
    assert outcome.stages["first-step"] == f"not checked: {reason}"


LAUNCHES = {
    "plain": "{run} -m verl.trainer.main_ppo a=b",
    "with a variable of its own": "N=1 {run} -m verl.trainer.main_ppo a=b > log 2>&1; cat log",
    "exec": "exec {run} -m verl.trainer.main_ppo a=b",
    "nohup": "nohup {run} -m verl.trainer.main_ppo a=b 2> /dev/null | cat",
    "time": "time {run} -m verl.trainer.main_ppo a=b",
    "in a shell of its own": 'bash -c "{run} -m verl.trainer.main_ppo a=b"',
}
"""How a script starts its job: `run` prints its words."""


@pytest.mark.parametrize("how", LAUNCHES)
@pytest.mark.parametrize("name", ["printf", "/usr/bin/printf"])
def test_the_launch_line_of_a_script_gets_the_words(how: str, name: str, tmp_path: Path) -> None:
    line = LAUNCHES[how].format(run=f"{name} '%s|'")
    launch = shlex.split(line.removeprefix("bash -c ").strip('"'))
    mark = tmp_path / "mark"
    (tmp_path / "env").write_text(write_shell_file(launch, ["++a=[b]", "++c=d e"], str(mark)), encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"set -euo pipefail\nprintf '%s|' other\n{line}\n", encoding="utf-8")
    done = subprocess.run(
        ["bash", "run.sh"], cwd=tmp_path, env={**os.environ, "BASH_ENV": str(tmp_path / "env")}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "other|-m|verl.trainer.main_ppo|a=b|++a=[b]|++c=d e|"
    assert mark.exists()


def test_a_program_that_only_the_script_knows_gets_no_words() -> None:
    assert write_shell_file(["", "-m", "verl.trainer.main_ppo"], ["++a=b"], "mark") == ""
    assert write_shell_file(["$(which python)", "train.py"], ["++a=b"], "mark") == ""
