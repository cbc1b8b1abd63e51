"""What a job of slime, or of miles, prints of a step.

Source: slime/backends/megatron_utils/model.py of 00b5ed0e6 and data.py of 03b11f41f.
"""

from __future__ import annotations

import re

from ckptcheck.jobs.first_step import PrintedSteps

PRINTED_STEPS = PrintedSteps(
    before=re.compile(r"(?<![\w-])rollout \d+: \{'rollout/"),
    row=re.compile(r"(?<![\w-])step (\d{1,12}): \{'train/"),  # a critic's line begins with critic-step
    number=re.compile(r"'([\w/]+)': (?:tensor\()?(-?(?:\d[\d.e+-]*|nan|inf))[,})]"),
    loss="train/loss",
    gradient="train/grad_norm",
    zeros=("train/ppo_kl", "train/kl_loss"),  # slime's own CI allows 1e-8 at step 0
    logprobs=("rollout/log_probs", "rollout/ref_log_probs"),
    curves={
        "clip rate": "train/pg_clipfrac",
        "entropy": "train/entropy_loss",
        "KL to the reference": "train/kl_loss",
        "reward": "rollout/raw_reward",
        "response length": "rollout/response_lengths",
        "cut off": "rollout/truncated",
    },
)
