"""The job does not compute metrics that would show a gap between trainer and engine.

## What it checks
The trainer computes its own old logprobs, so that they can be compared with the engine's.

## Why it matters
- verl's bypass mode takes the engine's logprobs for the old ones. Its V1 trainer (the default since 0.9.0) then computes
  neither training/rollout_probs_diff_* nor rollout_corr/*; only actor/ppo_kl, the KL of the loss, still contains the gap. That is a
  warning. The earlier trainer, and those of fully_async_policy and one_step_off_policy, compute rollout_corr/* in the loss.
- NeMo-RL with force_on_policy_ratio skips the forward pass for old logprobs since 0.7.0, unless seq_logprob_error_threshold is set:
  it writes 0 for every sequence-level logprob error. token_mult_prob_error is still measured.

## How to fix
Watch the metric that is left; or turn the switch off for some steps first, or measure the gap with ckptcheck parity.

## When it can be wrong
You have measured the gap for this model and these versions.

## Seen in
verl-project/verl#7196, verl's `apply_bypass_mode` and `trainer_base.py`, NeMo-RL's grpo.py
(`_placeholder_seq_logprob_error_metrics`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

SWITCHES = {"algorithm.forced_ratio": "force_on_policy_ratio", "algorithm.bypass": "bypass_mode"}


@rule(
    "JOB020",
    "blind-metrics",
    severity="warning",
    on="job",
    when=lambda job: any(job[name].is_known for name in SWITCHES),
)
def check(job: Job) -> Iterator[Problem]:
    for name, switch in SWITCHES.items():
        # An entry point that turns the switch on by itself is made for it.
        if not job.flag(name) or job[name].status != "set" or (lost := job.text("metrics.lost")) is None:
            continue
        left = job.text("metrics.left")
        yield job.problem(
            f"{switch} is {job.describe(name)}: {job.framework} does not compute {lost}; {left} still shows the gap to the engine",
            at=name,
            severity=None if left == "actor/ppo_kl" else "info",
            hint=f"watch {left}, or turn {switch} off for the first steps",
        )
