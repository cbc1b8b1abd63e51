"""The trainer's logits explain the engine's logprobs neither as raw nor as processed.

## What it checks
- The probe compares the engine's logprob of each response token with the trainer's of the token before, of the same token, and of
  the token after: a shift by a token explains a gap, and is reported alone.
- Of the three kinds of logprobs that an engine can report, the best fit is within a mult_prob_error of 1.05.
- If none is, the probe searches for the temperature that brings the trainer's logprobs nearest (golden section over 0.05 to 20).
- If none closes the gap and the trainer computes in a narrow dtype, the trainer scores the same tokens in float32, which shows how
  far rounding moves the trainer alone. A gap of at most twice that is an info, since the engine rounds as well.
- A gap of at most five times the floor of `--floor FILE`, which `ckptcheck parity calibrate` measures with equal weights, is an
  info too.
- It does this with the job's own sampling.

## Why it matters
A shift by one gives ratios that look like a very large mismatch. Corrections such as truncated importance sampling then correct
what is only misaligned. If one temperature explains the gap, a division by it is missing or happens twice. If none does, the two
sides compute different models: other weights, other positions, other kernels.

## How to fix
- A shift: logprob[i] belongs to token i and comes from the logits at i - 1. Look for two places that shift labels: one in the data,
  one in the loss.
- A temperature closes the gap: look for a second division, and for the engine's defaults.
- None does: compare the weights (`ckptcheck refit`), and decoding with prefill.

## When it can be wrong
- Where the engine alone is narrow (FP8 weights or activations), or a mixture of experts is near ties in float32, the gap can exceed
  1.05 without a fault: give the floor.
- The probe compares 24 tokens of a few prompts, and reports a shift where the gap one token away is a third or less. A model
  whose logprobs hardly differ from token to token, such as a tiny random one, can reach that by chance. It does not find a shift
  by two tokens, or one in some sequences only.
- It tests the engine and the trainer as ckptcheck starts them. Your own harness may shift what these do not; PAR028 judges its
  files.

## Seen in
modelscope/ms-swift#8196, where logprobs were "shifted left by one"; ByteDance-Seed/VeOmni#917, whose harness shifted labels that
were shifted already; NVIDIA-NeMo/RL#4015; vime#64; verl-omni#637, where weights were equal and norms were not
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.semantics import SemanticsResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import LOOSE
from ckptcheck.rollouts.thresholds import Thresholds

HOT = 10.0
"""From this temperature on all logprobs are nearly alike and would explain any gap; no job samples there."""


@rule("PRB005", "unexplained-logprobs", severity="error", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    semantics = trace.result_of("semantics", SemanticsResult)
    if best := semantics.shift:
        direction = "before" if best < 0 else "after"
        yield Problem(
            f"the engine's logprob of a token is the trainer's of the token {direction} it: |Δ| is"
            f" {semantics.shifts[best]:.3f} nats there, and {semantics.shifts[0]:.3f} at the same token",
            hint="one side counts from the token, the other from the position that predicts it: shift one by one",
        )
        return
    if semantics.gaps[semantics.meaning].mult_prob_error > LOOSE:
        yield _describe(trace, semantics)


def _describe(trace: ProbeTrace, result: SemanticsResult) -> Problem:
    gap = result.gaps[result.meaning]
    if explanation := _explain_by_floor(trace, result):
        return Problem(
            f"the trainer's logits explain the engine's logprobs only up to rounding (mult_prob_error"
            f" {gap.mult_prob_error:.4g}): {explanation}",
            hint="compute in float32 where this gap is too large for the training",
            severity="info",
        )
    if _is_closed_by_temperature(result):
        detail = (
            f"temperature {result.best_temperature:.3g} closes it to {result.remaining_gap:.3f} nats; the"
            f" request asked for {result.sampling.temperature:g}"
        )
        hint = "look for a second division by the temperature, or a default of the engine's generation config"
    else:
        detail = (
            f"no temperature closes the gap; the best, {result.best_temperature:.3g}, leaves"
            f" {result.remaining_gap:.3g} nats a token"
        )
        hint = "compare the weights first (ckptcheck refit), then decode and prefill (the probe decode)"
    return Problem(
        f"the trainer's logits explain the engine's logprobs neither as raw nor as processed"
        f" (mult_prob_error {gap.mult_prob_error:.4g}): {detail}",
        hint=hint,
    )


def _is_closed_by_temperature(result: SemanticsResult) -> bool:
    gap = result.gaps[result.meaning]
    return result.remaining_gap < gap.mean / 3 and HOT > result.best_temperature > 1 / HOT


def _explain_by_floor(trace: ProbeTrace, result: SemanticsResult) -> str:
    """Say which floor explains the gap of a round; "" where none does, and where a temperature closes it."""
    if _is_closed_by_temperature(result):
        return ""
    gap, rounding = result.gaps[result.meaning], result.rounding
    if result.is_rounding and rounding is not None:
        return (
            f"in {trace.trainer.dtype if trace.trainer else 'a narrow dtype'} the trainer alone is {rounding.mean:.3g} nats a token"
            f" from its own float32 logits, and the engine {gap.mean:.3g} from the trainer"
        )
    times = trace.floor.multiple("mult_prob_error", gap.mult_prob_error) if trace.floor is not None else None
    if trace.floor is not None and times is not None and times <= Thresholds.floor:
        return f"that is {times:.3g} times the floor of equal weights, {trace.floor.metrics['mult_prob_error']:.4g}"
    return ""
