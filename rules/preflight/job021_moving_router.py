"""Every forward pass of the trainer changes the router's expert bias.

## What it checks
Where the model has experts, Megatron updates the router's expert bias at rate 0.

## Why it matters
The bias follows the load of experts, not the loss. Between two weight updates the engine routes with another bias than the
trainer, so tokens go to other experts on the two sides.

## How to fix
`--moe-router-bias-update-rate 0`; in NeMo-RL `moe_router_bias_update_rate: 0.0`.

## When it can be wrong
Every weight update sends the bias too, and you have measured the gap.

## Seen in
NeMo-RL's configurations ("by default, disable bias updates for grpo")
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB021",
    "moving-router",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.router_bias_update_rate"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.router_bias_update_rate")
    if job.moe is None:
        raise Skip("neither the configuration nor a checkpoint on this machine says whether the model has experts")
    if job.moe and job.number("trainer.router_bias_update_rate"):
        yield job.problem(
            f"the router's expert bias moves by {job.describe('trainer.router_bias_update_rate')} in every forward pass of the"
            " trainer, and not in the engine",
            at="trainer.router_bias_update_rate",
            hint="set it to 0",
        )
