"""The job does not compute the metrics that would show a gap between trainer and engine.

## What it checks
The trainer computes its own old logprobs, so that they can be compared with the engine's.

## Why it matters
- NeMo-RL with force_on_policy_ratio skips the forward pass and reports 0.0 for every logprob error: a perfect number.
- verl's bypass mode uses the engine's logprobs as the old ones, and drops the comparison exactly where the gap matters most.

## How to fix
Turn the switch off for some steps first, so that the trainer computes old logprobs; or measure the gap with ckptcheck parity.

## When it can be wrong
You have measured the gap for this model and these versions.

## Seen in
verl-project/verl#7196, NeMo-RL's grpo.py (placeholder metrics)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB020",
    "blind-metrics",
    severity="warning",
    on="job",
    when=lambda job: job["algorithm.forced_ratio"].is_known or job["algorithm.bypass"].is_known,
)
def check(job: Job) -> Iterator[Problem]:
    if job.flag("algorithm.forced_ratio"):
        yield job.problem(
            f"force_on_policy_ratio is {job.describe('algorithm.forced_ratio')}: the trainer computes no logprobs of its own, and"
            " the logprob errors that are reported are placeholders",
            at="algorithm.forced_ratio",
            hint="turn it off for the first steps",
        )
    if job.flag("algorithm.bypass"):
        yield job.problem(
            f"bypass_mode is {job.describe('algorithm.bypass')}: the engine's logprobs stand in for the trainer's, and their gap is"
            " not measured",
            at="algorithm.bypass",
            hint="turn it off for the first steps",
        )
