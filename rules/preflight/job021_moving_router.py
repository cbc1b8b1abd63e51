"""Every forward pass of the trainer moves the router's bias.

## What it checks
Where the model has experts, the rate at which Megatron updates the router's expert bias is 0.

## Why it matters
The bias moves with the load of experts, not with the loss, and between two weight updates the engine routes by another one: tokens
go to other experts on the two sides.

## How to fix
`--moe-router-bias-update-rate 0`; in NeMo-RL `moe_router_bias_update_rate: 0.0`.

## When it can be wrong
If the bias is part of every weight update and the gap was measured.

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
    job.need("trainer.router_bias_update_rate")
    if job.moe is None:
        raise Skip("whether the model has experts is neither in the configuration nor in a checkpoint that is here")
    if job.moe and job.number("trainer.router_bias_update_rate"):
        yield job.problem(
            f"the router's expert bias moves by {job.said('trainer.router_bias_update_rate')} in every forward pass of the"
            " trainer, and not in the engine",
            at="trainer.router_bias_update_rate",
            hint="set it to 0",
        )
