"""One side's logprobs are shifted by a token against the other's.

## What it checks
The probe compares the engine's logprob of each response token with the trainer's of the token before, of the same token, and of
the token after.

## Why it matters
A shift by one gives ratios that look like a very large mismatch. Corrections such as truncated importance sampling then correct
what is only misaligned.

## How to fix
logprob[i] belongs to token i and comes from the logits at i - 1. Look for two places that shift labels: one in the data, one in
the loss.

## When it can be wrong
- The probe compares 24 tokens of a few prompts, and reports a shift where the gap one token away is a third or less. A model
  whose logprobs hardly differ from token to token, such as a tiny random one, can reach that by chance.
- It does not find a shift by two tokens, or one in some sequences only.
- It tests the engine and the trainer as ckptcheck starts them. Your own harness may shift what these do not; PAR028 judges its
  files.

## Seen in
modelscope/ms-swift#8196, where logprobs were "shifted left by one"; ByteDance-Seed/VeOmni#917, whose harness
shifted labels that were shifted already
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.semantics import SemanticsResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB006", "shifted-logprobs", severity="error", on="probe", when=requires_probe("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("semantics", SemanticsResult).own
    if best := result.shift:
        direction = "before" if best < 0 else "after"
        yield Problem(
            f"the engine's logprob of a token is the trainer's of the token {direction} it: |Δ| is"
            f" {result.shifts[best]:.3f} nats there, and {result.shifts[0]:.3f} at the same token",
            hint="one side counts from the token, the other from the position that predicts it: shift one by one",
        )
