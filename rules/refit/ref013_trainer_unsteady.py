"""The trainer gives the same tokens other logprobs the second time.

## What it checks
Two forward passes of the trainer over the same tokens, with the same weights, are equal to the last bit; so is the forward pass of
each training step, so that the first KL of log_probs and ref_log_probs is exactly 0. A trainer on a GPU, or one that was seen not
to repeat itself before the first sync, may differ by half of what it comes to when weights are moved by their last place, on
average, and for one token by ten times that.

## Why it matters
At the first step log_probs and ref_log_probs come from the same weights: their difference, and the KL, have to be exactly 0. A
trainer that is not deterministic (dropout left on, kernels that sum in any order) puts noise into every ratio.

## How to fix
Turn dropout off, and use deterministic kernels where the noise matters.

## When it can be wrong
In a mixture of experts noise may route a token otherwise, which moves the mean of a few tokens.

## Seen in
slime's debugging guide ("log_probs and ref_log_probs must be exactly equal at the first step")
"""

from collections.abc import Iterator
from math import exp

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.apart import Gap, apart
from ckptcheck.refit.floor import MOST
from ckptcheck.refit.trace import RefitTrace, Scoring
from ckptcheck.trainers.base import Step


@rule("REF013", "trainer-unsteady", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    allowed, untold = _noise(trace), False
    for scoring in trace.scorings:
        gap = apart(scoring.trainer, scoring.again)
        untold = untold or bool(gap.most)
        if allowed is not None and not gap.within(allowed):
            yield Problem(f"two forward passes of the trainer over the same tokens are up to {gap.most:.3g} nats apart")
            return
    for number, (step, scoring) in enumerate(_stepped(trace), 1):
        gap = apart(step.scores, scoring.trainer) if step.scores else Gap()
        untold = untold or bool(gap.most)
        if allowed is not None and not gap.within(allowed):
            ratios = [
                b - a
                for one, other in zip(step.scores, scoring.trainer, strict=True)
                for a, b in zip(one, other, strict=False)
            ]
            divergence = sum(exp(min(ratio, 80.0)) - 1 - ratio for ratio in ratios) / max(1, len(ratios))
            yield Problem(
                f"the forward pass of step {number} is up to {gap.most:.3g} nats from one without training over the same weights"
                f" and tokens: the KL is {divergence:.3g} at the start, and should be 0",
                hint="look for dropout, and for what training computes in another dtype",
            )
            return
    if allowed is None and untold:
        raise Skip("the trial ended before it was measured what rounding comes to")


def _stepped(trace: RefitTrace) -> list[tuple[Step, Scoring]]:
    """Pair each step with the scoring before it: the k-th step follows the k-th scoring after a sync."""
    return list(zip(trace.steps, [scoring for scoring in trace.scorings if scoring.after], strict=False))


def _noise(trace: RefitTrace) -> Gap | None:
    """Return by how much this trainer may differ from itself; None where that was not measured.

    Its own repeats would excuse any noise, dropout too. What rounding comes to was measured with that noise in it: dropout
    alone makes it as large as a repeat is, and kernels that sum in any order make a repeat far smaller.
    """
    own = trace.floor.trainer
    on_gpu = trace.trainer is not None and trace.trainer.facts.get("device") == "cuda"
    if not own.repeat.most and not on_gpu:
        return Gap()
    return None if own.rounding is None else Gap(MOST * own.rounding.most, own.rounding.mean / 2)
