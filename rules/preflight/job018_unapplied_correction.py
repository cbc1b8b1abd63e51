"""The job asks for a rollout correction without the engine's logprobs that it needs.

## What it checks
Where verl's `rollout_correction` is on, `rollout.calculate_log_probs` is on too.

## Why it matters
- verl applies the correction only to batches that hold rollout_log_probs. Without them it trains uncorrected and prints no
  warning.
- In bypass mode it takes them for the old logprobs, and stops where they are missing.
- calculate_log_probs is on by default since verl 0.9.0 (June 2026), and was off before.

## How to fix
`actor_rollout_ref.rollout.calculate_log_probs=True`.

## When it can be wrong
The job runs with another version than the one that its files pin: `--framework-version 0.9.0`.

## Seen in
verl's trainer (`"rollout_log_probs" in batch.batch`; `apply_bypass_mode` raises), verl-project/verl 614ffc04c (the new default)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule("JOB018", "unapplied-correction", severity="error", on="job", when=lambda job: job.framework == "verl")
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("algorithm.correction", "rollout.logprobs")
    # In bypass mode the correction is part of the loss, and verl looks for the logprobs before it.
    has_correction = job.text("algorithm.correction") not in ("none", None) and not job.flag("algorithm.bypass")
    if (has_correction or job.flag("algorithm.bypass")) and job.flag("rollout.logprobs") is False:
        switch = (
            f"the correction {job.describe('algorithm.correction')}"
            if has_correction
            else f"bypass_mode ({job['algorithm.bypass'].place})"
        )
        outcome = "nothing is corrected" if not job.flag("algorithm.bypass") else "verl stops at the first batch"
        yield job.problem(
            f"{switch} needs the engine's logprobs, and calculate_log_probs is {job.describe('rollout.logprobs')}: {outcome}",
            at=next(
                name
                for name in ("rollout.logprobs", "algorithm.correction", "algorithm.bypass")
                if job[name].leaf or name == "algorithm.bypass"
            ),
            hint="set actor_rollout_ref.rollout.calculate_log_probs to True",
        )
