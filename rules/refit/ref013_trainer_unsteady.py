"""The trainer gives the same tokens other logprobs the second time.

## What it checks
Two forward passes of the trainer over the same tokens, with the same weights, are equal to the last bit; so is the forward pass of
each training step, so that the first KL of log_probs and ref_log_probs is exactly 0.

## Why it matters
At the first step log_probs and ref_log_probs come from the same weights: their difference, and the KL, have to be exactly 0. A
trainer that is not deterministic (dropout left on, kernels that sum in any order) puts noise into every ratio.

## How to fix
Turn dropout off, and use deterministic kernels where the noise matters.

## When it can be wrong
On GPUs, kernels with atomics are noisy by design; then the size of the difference is what counts.

## Seen in
slime's debugging guide ("log_probs and ref_log_probs must be exactly equal at the first step")
"""

from collections.abc import Iterator
from math import exp

from ckptcheck import Problem, rule
from ckptcheck.refit.apart import apart
from ckptcheck.refit.trace import RefitTrace


@rule("REF013", "trainer-unsteady", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    gap = max((apart(scoring.trainer, scoring.again).most for scoring in trace.scorings), default=0.0)
    if gap:
        yield Problem(f"two forward passes of the trainer over the same tokens are up to {gap:.3g} nats apart")
        return
    before = [
        scoring for scoring in trace.scorings if scoring.after
    ]  # the k-th step follows the k-th scoring after a sync
    for number, (step, scoring) in enumerate(zip(trace.steps, before, strict=False), 1):
        if step.scores and (gap := apart(step.scores, scoring.trainer).most):
            ratios = [
                b - a
                for one, other in zip(step.scores, scoring.trainer, strict=True)
                for a, b in zip(one, other, strict=False)
            ]
            divergence = sum(exp(min(ratio, 80.0)) - 1 - ratio for ratio in ratios) / max(1, len(ratios))
            yield Problem(
                f"the forward pass of step {number} is up to {gap:.3g} nats from one without training over the same weights and"
                f" tokens: the KL is {divergence:.3g} at the start, and should be 0",
                hint="look for dropout, and for what training computes in another dtype",
            )
            return
