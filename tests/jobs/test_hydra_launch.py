"""A launch line composes the configuration that it names, or the default of its program, whose values are defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.open_job import open_job
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules

VERL = {
    "verl/trainer/main_ppo.py": 'import hydra\n\n@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)\n'
    "def main(config):\n    raise SystemExit('it ran')\n",
    "verl/trainer/config/ppo_trainer.yaml": "defaults:\n  - model_engine: dp\n"
    "  - actor@actor_rollout_ref.actor: ${model_engine}_actor\n"
    "  - rollout@actor_rollout_ref.rollout: rollout\n  - _self_\ndata: {max_prompt_length: 700}\n",
    "verl/trainer/config/model_engine/dp.yaml": "# @package _global_\nmodel_engine: dp\n",
    "verl/trainer/config/model_engine/megatron.yaml": "# @package _global_\nmodel_engine: megatron\n",
    "verl/trainer/config/actor/dp_actor.yaml": "strategy: fsdp\nppo_mini_batch_size: 256\n",
    "verl/trainer/config/actor/megatron_actor.yaml": "defaults: [dp_actor, _self_]\nstrategy: megatron\n"
    "megatron: {tensor_model_parallel_size: 1}\n",
    "verl/trainer/config/rollout/rollout.yaml": "name: ???\ntemperature: 0.9\n"
    "prompt_length: ${oc.select:data.max_prompt_length,512}\n"
    "of_next_month: 1\n",
    "verl/experimental/one_step_off_policy/main_ppo.py": "from x import y\nimport hydra\n\n"
    '@hydra.main(config_path="config", config_name="one_step_off", version_base=None)\ndef main(config):\n    pass\n',
    "verl/experimental/one_step_off_policy/config/one_step_off.yaml": "hydra:\n  searchpath: [file://verl/trainer/config]\n"
    "defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {rollout: {calculate_log_probs: true}}\n",
}  # fmt: skip
RUN = (
    "cd x\nPYTHONUNBUFFERED=1 python3 -m {module} \\\n    actor_rollout_ref.rollout.name=vllm {more} \\\n"
    "    actor_rollout_ref.model.path=org/model\n"
)


def open_script(folder: Path, files: dict[str, str], script: str) -> Job:
    for name, text in {**files, "examples/grpo/run.sh": script}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return open_job([str(folder / "examples" / "grpo" / "run.sh")])


def test_the_default_of_the_program(tmp_path: Path) -> None:
    job = open_script(tmp_path, VERL, RUN.format(module="verl.trainer.main_ppo", more="model_engine=megatron"))
    assert job.text("trainer.backend") == "megatron"
    assert [
        (name, job[name].status, job.describe(name)) for name in ("rollout.temperature", "rollout.prompt_length")
    ] == [
        ("rollout.temperature", "default", "0.9 (../../verl/trainer/config/rollout/rollout.yaml:2)"),
        ("rollout.prompt_length", "default", "700 (../../verl/trainer/config/rollout/rollout.yaml:3)"),
    ]
    assert job["engine.name"].status == "set"
    assert job.files == ("run.sh",)
    assert not job.unknown_keys
    assert [refusal.missing for refusal in job.refusals] == ["actor_rollout_ref.model.path"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("actor_rollout_ref.rolout.n=1", "actor_rollout_ref.rollout.n"),
        ("actor_rollout_ref.rollout.temprature=1", "actor_rollout_ref.rollout.temperature"),
        ("actor_rollout_ref.rolout.temprature=1", ""),
        ("trainer.nope=1", ""),
    ],
)
def test_a_refused_override_is_told_what_it_is_almost(tmp_path: Path, written: str, meant: str) -> None:
    files = {**VERL, "verl/trainer/config/rollout/rollout.yaml": "name: ???\ntemperature: 0.9\nn: 1\n"}
    job = open_script(tmp_path, files, RUN.format(module="verl.trainer.main_ppo", more=written))
    assert [refusal.near for refusal in job.refusals if refusal.missing == written.partition("=")[0]] == [meant]
    found = run_rules(job, [rule for rule in load_rules() if rule.code in ("JOB023", "JOB050")]).findings
    assert [finding.code for finding in found] == ["JOB050"] * len(found), "one finding a cause"
    assert not meant or any(meant in (finding.hint or "") for finding in found)


def test_a_searchpath_of_the_program_is_the_programs(tmp_path: Path) -> None:
    module = "verl.experimental.one_step_off_policy.main_ppo"
    job = open_script(tmp_path, VERL, RUN.format(module=module, more=""))
    assert job["rollout.temperature"].status == "default"
    assert (job["rollout.logprobs"].status, job.describe("rollout.logprobs")) == (
        "default",
        "on (../../verl/experimental/one_step_off_policy/config/one_step_off.yaml:4)",
    )
    assert job.files == ("run.sh",)
    assert not job.unknown_keys


def test_a_configuration_of_the_job_that_builds_on_the_programs(tmp_path: Path) -> None:
    ours = {"conf/ours.yaml": "hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults: [ppo_trainer, _self_]\n"
            "actor_rollout_ref: {rollout: {temperature: 0.6}}\n"}  # fmt: skip
    more = "--config-path=conf --config-name=ours"
    job = open_script(tmp_path, VERL | ours, RUN.format(module="verl.trainer.main_ppo", more=more))
    assert (job["rollout.temperature"].status, job.describe("rollout.temperature")) == (
        "set",
        "0.6 (../../conf/ours.yaml:4)",
    )
    assert job["rollout.prompt_length"].status == "default"
    assert job.files == ("run.sh", "../../conf/ours.yaml")


@pytest.mark.parametrize(
    ("program", "config"),
    [
        ('args.config = os.path.join(os.path.dirname(__file__), "configs", "grpo.yaml")', 0.4),
        ('args.config = os.path.join(HERE, "configs", "grpo.yaml")', None),
        ('args.config = os.path.join(os.path.dirname(__file__), "configs", NAME)', None),
        ("args.config = 1\nx = (", None),
    ],
)
def test_the_default_of_nemo_rl(tmp_path: Path, program: str, config: float | None) -> None:
    files = {
        "run_grpo.py": f"import os\n\ndef main(args):\n    {program}\n",
        "configs/grpo.yaml": "defaults: base.yaml\npolicy: {generation: {temperature: 0.4}}\n",
        "configs/base.yaml": "policy: {generation: {backend: vllm, temperature: 1.0}}\ngrpo: {}\n",
    }
    script = "A=1 uv run run_grpo.py policy.generation.top_p=0.9\n"
    job = open_script(tmp_path, files, script.replace("run_grpo.py", str(tmp_path / "run_grpo.py")))
    assert job.number("rollout.temperature") == config
    assert bool(job.refusals) == (config is not None)


def test_a_program_that_takes_new_keys(tmp_path: Path) -> None:
    files = {
        "run_eval.py": "from omegaconf import OmegaConf\nOmegaConf.merge(config, OmegaConf.from_cli())\n",
        "eval.yaml": "policy: {generation: {backend: vllm}}\ngrpo: {}\n",
    }
    script = f"python {tmp_path / 'run_eval.py'} --config {tmp_path / 'eval.yaml'} policy.new=1\n"
    assert not open_script(tmp_path, files, script).refusals


def test_the_user_chooses_a_configuration(tmp_path: Path) -> None:
    open_script(tmp_path, VERL, RUN.format(module="verl.trainer.main_ppo", more=""))
    script = str(tmp_path / "examples" / "grpo" / "run.sh")
    assert open_job([script]).text("trainer.backend") == "fsdp"
    assert open_job([script, "model_engine=megatron"]).text("trainer.backend") == "megatron"
    config = str(tmp_path / "verl" / "trainer" / "config" / "ppo_trainer.yaml")
    job = open_job([config, "model_engine=megatron", "data.max_prompt_length=9", "new.key=1"])
    assert (job.text("trainer.backend"), job.number("rollout.prompt_length"), job.refusals) == ("megatron", 9, [])


@pytest.mark.usefixtures("without_clock")
def test_defaults_that_multiply_are_refused(tmp_path: Path) -> None:
    for number in range(1, 19):
        text = f"defaults: [{', '.join(f'f{number - 1}@{name}' for name in 'abc')}]\n"
        (tmp_path / f"f{number}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "f0.yaml").write_text("x: 1\n", encoding="utf-8")
    (tmp_path / "job.yaml").write_text("defaults: [f18, _self_]\npolicy: {generation: {}}\n", encoding="utf-8")
    with pytest.raises(CkptcheckError, match="the defaults list comes to more than 300,000 steps of work"):
        open_job([str(tmp_path / "job.yaml")])


def test_a_very_long_override_is_not_read(tmp_path: Path) -> None:
    script = RUN.format(module="verl.trainer.main_ppo", more="actor_rollout_ref.rollout.temperature=" + "1" * 30_000)
    job = open_script(tmp_path, VERL, script)
    assert job["rollout.temperature"].source == "it has more than 20,000 characters"
