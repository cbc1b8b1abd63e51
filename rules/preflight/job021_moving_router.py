"""The router's expert bias moves with the load of experts, and not with the reward.

## What it checks
Where the model has experts and the router an expert bias, Megatron updates that bias at rate 0. Where the job itself turns the bias
on and writes a rate, that is an info; a rate alone, or Megatron's default (0.001), is a warning.

## Why it matters
- Megatron moves the bias at every optimizer step (`_update_router_expert_bias` in finalize_model_grads) so that the load of experts
  evens out. The loss has no say in it, so that routing, and with it every logprob, drifts without a reward.
- The engine routes with the bias of the last weight update, and only if the update sends the bias too (`e_score_correction_bias`).

## How to fix
`--moe-router-bias-update-rate 0`; in NeMo-RL `moe_router_bias_update_rate: 0.0`.

## When it can be wrong
You want the load to be balanced while you train, and every weight update sends the bias.

## Seen in
NeMo-RL's configurations ("by default, disable bias updates for grpo"), slime's scripts/models (`--moe-router-bias-update-rate 0`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB021",
    "moving-router",
    severity="warning",
    on="job",
    when=lambda job: job["trainer.router_bias_update_rate"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.router_bias_update_rate", "trainer.router_bias")
    rate = job["trainer.router_bias_update_rate"]
    if not rate.value or job.flag("trainer.router_bias") is False:
        return
    if job.moe is None:
        job.require_read("checkpoint.model", "config.json")
        raise Skip("neither the configuration nor a checkpoint on this machine says whether the model has experts")
    if job.moe:
        yield job.problem(
            f"the router's expert bias moves by {job.describe('trainer.router_bias_update_rate')} at every optimizer step, with the"
            " load of experts and without the reward",
            at="trainer.router_bias_update_rate" if rate.leaf else "trainer.router_bias",
            severity="info" if rate.status == job["trainer.router_bias"].status == "set" else None,
            hint="set it to 0, or see that every weight update sends the bias",
        )
