"""The hints on a consistency dump: followed together, they leave nothing to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from tests.factories.job_cases import read_job

RULES = [rule for rule in load_rules() if rule.code == "JOB016"]


def write_script(train: int, mini: int, micro: int, n: int) -> str:
    return f"""
export DUMP_ON=1
export PROMPTS_ONLY=1
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.model.path=org/model actor_rollout_ref.actor.strategy=megatron \\
    data.train_batch_size={train} actor_rollout_ref.actor.ppo_mini_batch_size={mini} \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={micro} actor_rollout_ref.rollout.n={n} \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.model.use_remove_padding=True \\
    trainer.balance_batch=False trainer.nnodes=1 trainer.n_gpus_per_node=8
"""


@pytest.mark.parametrize(
    ("train", "mini", "micro", "n"),
    [
        (32, 16, 8, 4), (32, 16, 16, 4), (64, 64, 16, 4), (128, 32, 8, 4),
        (30, 30, 4, 3), (30, 10, 4, 3), (32, 16, 8, 5), (1, 1, 1, 1),  # the first, second and last fit no number of ranks
    ],
)  # fmt: skip
def test_fixes_compose(train: int, mini: int, micro: int, n: int, tmp_path: Path) -> None:
    report = run_rules(read_job({"name": "run.sh", "job": write_script(train, mini, micro, n)}, tmp_path), RULES)
    assert report.findings
    sizes = {"train_batch_size": train, "ppo_mini_batch_size": mini, "ppo_micro_batch_size_per_gpu": micro}
    for finding in report.findings:
        sizes |= {name: int(value) for name, value in re.findall(r"(\w*batch_size\w*) to (\d+)", finding.hint or "")}
    again = run_rules(read_job({"name": "run.sh", "job": write_script(*sizes.values(), n)}, tmp_path), RULES)
    assert not again.findings
