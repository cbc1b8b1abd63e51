"""What a trainer of PipelineRL prints of a step: every number as a text.

Source: pipelinerl/finetune_loop.py, finetune/logging_.py and finetune/rl/__init__.py of 58d3934.
"""

from __future__ import annotations

import re

from ckptcheck.jobs.first_step import PrintedSteps

PRINTED_STEPS = PrintedSteps(
    row=re.compile(r"Completed steps (\d{1,12}): \{'"),
    number=re.compile(r"'([\w/]+)': '(-?(?:\d[\d.e+-]*|nan|inf))'[,}]"),
    loss="rl/loss",
    gradient="stats/grad_norm",
    curves={
        "ratio": "rl/ratio_new_old",
        "lag": "stats/lag",
        "clip rate": "rl/clamp_log_ratio_new_old_indicator",
        "ess": "rl/ess",
        "k3": "rl/kl_new_old",
        "entropy": "rl/entropy",
        "KL to the reference": "rl/kl",
        "reward": "rl/reward",
    },
)
