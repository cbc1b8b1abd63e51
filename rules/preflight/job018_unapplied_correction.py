"""The job asks for a rollout correction without the engine's logprobs that it needs.

## What it checks
Where verl's `rollout_correction` is on, `rollout.calculate_log_probs` is on too.

## Why it matters
verl applies the correction only to batches that hold rollout_log_probs. Without them it trains uncorrected and prints no
warning.

## How to fix
`actor_rollout_ref.rollout.calculate_log_probs=True`.

## When it can be wrong
In versions of verl that turn it on by themselves.

## Seen in
verl's trainer (`"rollout_log_probs" in batch.batch`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule("JOB018", "unapplied-correction", severity="error", on="job", when=lambda job: job.framework == "verl")
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("algorithm.correction", "rollout.logprobs")
    has_correction = job.text("algorithm.correction") not in ("none", None)
    if (has_correction or job.flag("algorithm.bypass")) and job.flag("rollout.logprobs") is False:
        switch = (
            f"the correction {job.describe('algorithm.correction')}"
            if has_correction
            else f"bypass_mode ({job['algorithm.bypass'].place})"
        )
        yield job.problem(
            f"{switch} needs the engine's logprobs, and calculate_log_probs is"
            f" {job.describe('rollout.logprobs')}: nothing is corrected",
            at="rollout.logprobs" if job["rollout.logprobs"].leaf else "algorithm.correction",
            hint="set actor_rollout_ref.rollout.calculate_log_probs to True",
        )
