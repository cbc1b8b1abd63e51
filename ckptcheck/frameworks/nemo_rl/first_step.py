"""How a job of NeMo-RL runs for its first step alone, and what it prints. Source: nemo_rl/algorithms/grpo.py of 7ea279abf."""

from __future__ import annotations

import re

from ckptcheck.jobs.first_step import FirstStep

FIRST_STEP = FirstStep(
    steps=2,  # weights are sent before each generation
    settings={
        "grpo.max_num_steps": "2",
        "grpo.val_period": "0",
        "grpo.val_at_start": "false",
        "grpo.val_at_end": "false",
        "checkpointing.enabled": "false",
        "logger.log_dir": "{folder}",
        "logger.wandb_enabled": "false",
        "logger.swanlab_enabled": "false",
        "logger.mlflow_enabled": "false",
    },
    row=re.compile(r"Training Results:"),
    number=re.compile(r"• ([A-Z][\w ]*): (-?(?:\d[\d.e+-]*|nan|inf))$"),
    loss="Loss",
    curves={"reward": "Avg Reward", "response length": "Mean Generation Length"},
)
