"""One side's logprobs are shifted by a token against the other's.

## What it checks
The engine's logprobs of a response are held against the trainer's of the token before, of the same one, and of the one after.

## Why it matters
A shift by one gives ratios that look like a very large mismatch, and corrections such as truncated importance sampling then
correct what is only misaligned.

## How to fix
logprob[i] belongs to token i, and comes from the logits at i - 1. Look where labels are shifted: once in the data, once in the
loss.

## When it can be wrong
It compares 24 tokens of a few prompts, and calls it a shift where the gap is a third or less one token away. A model
whose logprobs hardly differ from token to token, as a tiny random one's, can come to that by chance. A shift by two
tokens, or in some sequences only, is not found. It is about the engine and the trainer as started here; your own
harness may shift what these two do not: PAR028 judges its files.

## Seen in
modelscope/ms-swift#8196, where logprobs were "shifted left by one"; ByteDance-Seed/VeOmni#917, whose harness
shifted labels that were shifted already
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.semantics import SemanticsSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB006", "shifted-logprobs", severity="error", on="probe", when=asked("semantics"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("semantics", SemanticsSeen).own
    if best := seen.shift:
        where = "before" if best < 0 else "after"
        yield Problem(
            f"the engine's logprob of a token is the trainer's of the token {where} it: |Δ| is"
            f" {seen.shifts[best]:.3f} nats there, and"
            f" {seen.shifts[0]:.3f} where they should meet",
            hint="one side counts from the token, the other from the position that predicts it: shift one by one",
        )
