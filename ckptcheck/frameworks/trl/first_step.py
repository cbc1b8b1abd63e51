"""How a job of TRL runs for its first step alone, and what it logs. Source: trl/trainer/grpo_trainer.py of TRL 1.16.0."""

from __future__ import annotations

import re

from ckptcheck.jobs.first_step import FirstStep

FIRST_STEP = FirstStep(
    steps=2,  # weights are sent before each generation
    settings={
        "max_steps": "2",
        "logging_steps": "1",
        "logging_strategy": "steps",
        # a learning rate that begins at 0 (warm-up) would leave the second sync as the first
        "lr_scheduler_type": "constant",
        "disable_tqdm": "True",
        "report_to": "none",
        "output_dir": "{folder}",
        "save_strategy": "no",
        "eval_strategy": "no",
        "push_to_hub": "False",
    },
    row=re.compile(r"""\{(?:'loss'|"loss"): """),  # the second as ms-swift writes it
    number=re.compile(r"""['"]([\w/]+)['"]: ['"]?(-?(?:\d[\d.e+-]*|nan|NaN|inf|Infinity))['"]?[,}]"""),
    loss="loss",
    gradient="grad_norm",
    curves={
        "clip rate": "clip_ratio/region_mean",
        "entropy": "entropy",
        "KL to the reference": "kl",
        "reward": "reward",
        "response length": "completions/mean_length",
        "cut off": "completions/clipped_ratio",
        "silent groups": "frac_reward_zero_std",
    },
    program=("trl", "grpo", "--config"),
)
