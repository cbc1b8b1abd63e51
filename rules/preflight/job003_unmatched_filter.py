"""Rollouts are sampled with top-p or top-k, and the trainer computes logprobs without it.

## What it checks
Where rollouts are sampled with top-p below 1 or with top-k, the trainer applies the same filter to its own logprobs.

## Why it matters
- The tokens come from a truncated distribution.
- The engine normalises its processed logprobs over the tokens that the filter keeps; the trainer normalises over all tokens.
- The two differ even with equal weights, and most where the filter cuts most. Ratios of an importance correction are then never
  above 1: a bias, which a product over a response makes large.
- An engine that returns raw logprobs normalises as the trainer does. A top-p of 0.99 or a top-k of 100 then cuts only tokens that
  are hardly ever drawn: an info.

## How to fix
Sample with `top_p: 1` and `top_k: -1` in training, and keep filters for evaluation.

## When it can be wrong
You accept the small bias. NeMo-RL applies the filters in training too, and slime replays the nucleus of
top-p (since 0.3.1), so the rule stays quiet there.

## Seen in
vllm-project/vime#64, vllm-project/vime#69, huggingface/trl#6789; 100 of ROLL's examples at 8eb27cc2 have top_p 0.99 and top_k 100
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job

WIDE_TOP_P, WIDE_TOP_K = 0.99, 100
"""The least filters that are an info beside raw logprobs: those of ROLL's examples."""


@rule(
    "JOB003",
    "unmatched-filter",
    severity="warning",
    on="job",
    when=lambda job: job["rollout.top_p"].status != "unknown" or job["rollout.top_k"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("rollout.top_p", "rollout.top_k")
    top_p, top_k = job.number("rollout.top_p"), job.number("rollout.top_k")
    active = [name for name, on in (("top_p", top_p is not None and top_p < 1), ("top_k", (top_k or 0) > 0)) if on]
    if not active:
        return
    if job.flag("trainer.filters") is None:
        raise Skip(f"no setting says whether {job.framework}'s trainer applies top-p and top-k to its logprobs")
    if not job.flag("trainer.filters"):
        is_wide = (top_p is None or top_p >= WIDE_TOP_P) and (not top_k or top_k <= 0 or top_k >= WIDE_TOP_K)
        filters = " and ".join(f"{name} {job.describe(f'rollout.{name}')}" for name in active)
        # The engine divides by the share of probability that the filter keeps: at least top-p.
        least = f"from {top_p:g} to 1" if len(active) == 1 and active[0] == "top_p" else "at most 1"
        is_biased = job.text("engine.logprobs") == "processed" and job.text("algorithm.correction") not in (
            None,
            "none",
        )
        yield job.problem(
            f"rollouts are sampled with {filters}, and {job.framework}'s trainer computes logprobs over all tokens"
            + (f": the ratios of the correction are {least} where the two agree, not 1" if is_biased else ""),
            at=f"rollout.{active[0]}",
            severity="info" if is_wide and job.text("engine.logprobs") == "raw" else None,
            hint="sample with top_p 1 and top_k -1 in training",
        )
