"""The trainer gives other logprobs when it scores the same tokens again.

## What it checks
- Two forward passes of the trainer over the same tokens with the same weights are equal to the last bit.
- So is the forward pass of each training step. The first KL between log_probs and ref_log_probs is therefore exactly
  0.
- A trainer on a GPU, and one that did not repeat itself before the first sync, may differ: on average by half of what
  moving every weight by one unit in its last place changes, and for one token by ten times that.
- Where one of the two agrees with the engine over the same weights, the message says that the other is at fault.

## Why it matters
- At the first step, log_probs and ref_log_probs come from the same weights, so their difference and the KL must be
  exactly 0.
- A trainer that is not deterministic (dropout left on, kernels that sum in any order) adds noise to every ratio.

## How to fix
- Turn dropout off, and use deterministic kernels if the noise matters.

## When it can be wrong
- In a mixture of experts, noise may route a token to other experts, which moves the mean of a few tokens.

## Seen in
slime's debugging guide ("log_probs and ref_log_probs must be exactly equal at the first step")
"""

from collections.abc import Iterator
from math import exp

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.logprob_diff import LogprobDiff, compare_logprobs
from ckptcheck.live.refit.noise_floor import MOST
from ckptcheck.live.refit.observations import Scoring
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.trainers.base import OptimizerStep


@rule("REF013", "trainer-unsteady", severity="error", on="refit", when=lambda trace: bool(trace.scorings))
def check(trace: RefitTrace) -> Iterator[Problem]:
    tolerance, any_difference = _measured_noise(trace), False
    for scoring in trace.scorings:
        difference = compare_logprobs(scoring.trainer, scoring.trainer_repeat)
        any_difference = any_difference or bool(difference.most)
        if tolerance is not None and not difference.within(tolerance):
            yield Problem(
                f"two forward passes of the trainer over the same tokens differ by up to {difference.most:.3g} nats",
                hint="turn dropout off; if it is off, look for kernels that sum in any order, sequences that are packed in another"
                " order each time, and weights that change between the passes",
            )
            return
    for number, (step, scoring) in enumerate(_pair_steps(trace), 1):
        difference = compare_logprobs(step.scores, scoring.trainer) if step.scores else LogprobDiff()
        any_difference = any_difference or bool(difference.most)
        if tolerance is not None and not difference.within(tolerance):
            log_ratios = [
                after - before
                for one, other in zip(step.scores, scoring.trainer, strict=True)
                for before, after in zip(one, other, strict=False)
            ]
            kl = sum(exp(min(ratio, 80.0)) - 1 - ratio for ratio in log_ratios) / max(1, len(log_ratios))
            fault, hint = _name_wrong_pass(trace, step, scoring)
            yield Problem(
                f"the forward pass of step {number} differs by up to {difference.most:.3g} nats from one without training,"
                f" over the same weights and tokens: the first KL is {kl:.3g} and should be 0" + fault,
                hint=hint,
            )
            return
    if tolerance is None and any_difference:
        raise Skip("the trial ended before it measured what rounding amounts to")


def _name_wrong_pass(trace: RefitTrace, step: OptimizerStep, scoring: Scoring) -> tuple[str, str]:
    """Say which of the trainer's two forward passes the engine agrees with, where it is one; and what to look for."""
    hint = "look for dropout, and for what training computes in another dtype"
    engine = [scores.prompt_logprobs for scores in scoring.engine]
    tolerance = trace.noise_floor.trainer_tolerance
    agrees = [compare_logprobs(engine, own).within(tolerance) for own in (step.scores, scoring.trainer)]
    if agrees == [True, False]:
        return (
            "; the engine agrees with the step's, so the trainer's own scoring is at fault: a temperature of its logits, or"
            " another setting",
            "compare the settings of the scoring with those of the step: temperature, dtype, padding",
        )
    if agrees == [False, True]:
        return "; the engine agrees with the other, so the trainer's step is at fault", hint
    return "", f"{hint}; or for a temperature or another setting of the scoring alone"


def _pair_steps(trace: RefitTrace) -> list[tuple[OptimizerStep, Scoring]]:
    """Pair each step with the scoring before it: the k-th step follows the k-th scoring after a sync."""
    return list(zip(trace.steps, [scoring for scoring in trace.scorings if scoring.after_sync], strict=False))


def _measured_noise(trace: RefitTrace) -> LogprobDiff | None:
    """Return by how much this trainer may differ from itself; None if the trial did not measure that.

    The trainer's own repeats would excuse any noise, dropout too. The cost of rounding was measured with that noise in it:
    dropout alone makes it as large as a repeat is, and kernels that sum in any order make a repeat far smaller.
    """
    noise = trace.noise_floor.trainer
    is_on_gpu = trace.trainer is not None and trace.trainer.facts.get("device") == "cuda"
    if not noise.repeat.most and not is_on_gpu:
        return LogprobDiff()
    return None if noise.rounding is None else LogprobDiff(MOST * noise.rounding.most, noise.rounding.mean / 2)
