"""How a job of verl runs for its first step alone, and what it logs.

Source: verl/trainer/ppo/ray_trainer.py, verl/utils/logger/aggregate_logger.py and verl/utils/debug/metrics.py of 0.9.1.
"""

from __future__ import annotations

import re

from ckptcheck.jobs.first_step import FirstStep

FIRST_STEP = FirstStep(
    # weights are sent after each step too, and the engine looks at them before it computes again
    steps=2,
    settings={
        "trainer.total_training_steps": "2",
        "trainer.logger": "[console]",
        "trainer.default_local_dir": "{folder}",
        "trainer.resume_mode": "disable",
        "trainer.save_freq": "-1",
        "trainer.test_freq": "-1",
        "trainer.val_before_train": "False",
        "actor_rollout_ref.actor.optim.lr_warmup_steps": "0",
        "actor_rollout_ref.rollout.calculate_log_probs": "True",
    },
    row=re.compile(r"\bstep:(\d{1,12}) - "),
    number=re.compile(r" - ([\w/@.-]+):(?:np\.float\d\d\()?(-?(?:\d[\d.e+-]*|nan|inf))"),
    loss="actor/pg_loss",
    gradient="actor/grad_norm",
    curves={
        "clip rate": "actor/pg_clipfrac",
        "entropy": "actor/entropy",
        "KL to the reference": "actor/kl_loss",
        "reward": "critic/score/mean",
        "response length": "response_length/mean",
        "cut off": "response_length/clip_ratio",
    },
)
