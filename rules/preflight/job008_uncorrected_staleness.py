"""The job trains on rollouts of older weights without an importance correction.

## What it checks
Where rollouts may be older than the weights that they train, the loss corrects for it: with truncated importance sampling, or
with a ratio against the engine's logprobs.

## Why it matters
- Without a correction the new weights compute the old logprobs too, so the ratio says 1 although the policy has moved.
- NeMo-RL's authors saw training collapse after some hundred steps; its asynchronous GRPO requires the correction.

## How to fix
- NeMo-RL: `loss_fn.use_importance_sampling_correction: true`.
- verl: `algorithm.rollout_correction.rollout_is: token` and `calculate_log_probs: true`.
- slime: `--use-tis`.

## When it can be wrong
With a lag of one step and a small learning rate some jobs train well without a correction.

## Seen in
NVIDIA-NeMo/RL#1098
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB008",
    "uncorrected-staleness",
    severity="warning",
    on="job",
    when=lambda job: job["algorithm.correction"].status != "unknown" and job["algorithm.lag"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("algorithm.lag", "algorithm.correction", "algorithm.uses_rollout_logprobs")
    is_stale = bool(job.number("algorithm.lag")) or job.flag("algorithm.unbounded_lag")
    if is_stale and job.text("algorithm.correction") == "none" and not job.flag("algorithm.uses_rollout_logprobs"):
        lag = job.number("algorithm.lag")
        place = job["algorithm.lag"].place
        age = (
            f"up to {lag:g} version{'' if lag == 1 else 's'} older than the weights ({place})" if lag else "of any age"
        )
        yield job.problem(
            f"rollouts are {age}, and no importance correction is on ({job['algorithm.correction'].place})",
            at="algorithm.correction" if job["algorithm.correction"].leaf else "algorithm.lag",
            hint="turn on truncated importance sampling",
        )
