"""The trainer computes logprobs at a temperature other than that of sampling.

## What it checks
The temperature of sampling equals the temperature by which the trainer divides its logits.

## Why it matters
The trainer improves another policy than the one that acts. A ratio between the two is wrong for every token, however well the
weights agree.

A framework whose trainer always computes logprobs at temperature 1 (ROLL) leaves no choice but to sample at 1: a warning. Between
0.99 and 1.01, beside an engine whose logprobs are raw like the trainer's, only the choice of tokens is off by a little: an info.

## How to fix
Let one setting refer to the other: `temperature: ${llm.parameters.temperature}`. In ROLL: `temperature: 1`.

## When it can be wrong
No case is known. Where a framework has one setting for both, the rule has nothing to compare and stays quiet.

## Seen in
verl-project/verl#4162, NVIDIA-NeMo/RL#4015, marin-community/marin#1879, OpenRLHF/OpenRLHF#853; 100 of ROLL's examples at 8eb27cc2
sample at 0.99
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job

NEAR = 0.0101
"""Largest distance from temperature 1 that is an info: ROLL's examples sample at 0.99."""


@rule(
    "JOB002",
    "temperature-mismatch",
    severity="error",
    on="job",
    when=lambda job: job["rollout.temperature"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.temperature", "rollout.temperature")
    trainer, rollout = job.number("trainer.temperature"), job.number("rollout.temperature")
    if trainer is None or rollout is None:
        raise Skip(f"no setting says at which temperature {job.framework}'s trainer computes logprobs")
    if trainer != rollout and job.flag("trainer.plain_logprobs"):
        is_near = abs(rollout - trainer) < NEAR and job.text("engine.logprobs") == "raw"
        yield job.problem(
            f"rollouts are sampled at temperature {job.describe('rollout.temperature')}, and {job.framework}'s trainer always"
            f" computes logprobs at temperature {trainer:g}",
            at="rollout.temperature",
            severity="info" if is_near else "warning",
            hint="sample at temperature 1 in training",
        )
    elif trainer != rollout:
        yield job.problem(
            f"the trainer computes logprobs at temperature {job.describe('trainer.temperature')}, and rollouts are sampled at"
            f" {job.describe('rollout.temperature')}",
            at="trainer.temperature" if job["trainer.temperature"].leaf else "rollout.temperature",
            hint="let one setting refer to the other",
        )
