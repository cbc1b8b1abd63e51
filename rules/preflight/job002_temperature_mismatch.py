"""The trainer computes logprobs at another temperature than the rollouts are sampled at.

## What it checks
The temperature of sampling and the one by which the trainer divides its logits are the same.

## Why it matters
The trainer then improves another policy than the one that acts. A ratio between the two is wrong for every token, however well
the weights agree.

## How to fix
Let one setting refer to the other: `temperature: ${llm.parameters.temperature}`.

## When it can be wrong
Not known. Where a framework takes one setting for both, there is nothing to compare and nothing is said.

## Seen in
verl-project/verl#4162, NVIDIA-NeMo/RL#4015, marin-community/marin#1879, OpenRLHF/OpenRLHF#853
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB002",
    "temperature-mismatch",
    severity="error",
    on="job",
    when=lambda job: job["rollout.temperature"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("trainer.temperature", "rollout.temperature")
    trainer, rollout = job.number("trainer.temperature"), job.number("rollout.temperature")
    if trainer is None or rollout is None:
        raise Skip(f"at which temperature {job.framework}'s trainer computes logprobs is in no setting")
    if trainer != rollout:
        yield job.problem(
            f"the trainer computes logprobs at temperature {job.said('trainer.temperature')}, and rollouts are sampled at"
            f" {job.said('rollout.temperature')}",
            at="trainer.temperature",
            hint="let one refer to the other",
        )
