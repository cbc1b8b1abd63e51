"""The two sides agree better if one is shifted by a token.

## What it checks
The mean |engine_i - trainer_(i+k)| for k = -1, 0, 1 over the same tokens, where the gap is above 0.05 nats. The rule reports a
shift that removes three quarters of the gap.

## Why it matters
A logit predicts the next token. Code that forgets that, or accounts for it twice, pairs every logprob with its neighbour's. The
numbers look plausible, but the ratios are noise.

## How to fix
Gather logits[i - 1] at tokens[i]. Do not shift labels again that a data loader has already shifted.

## When it can be wrong
- The rule needs 32 tokens with a compared neighbour on both sides and tries a shift by one token only. A shift by two, or by a
  whole prompt, shows as a large gap without a cause.
- Text in which every token has nearly the same logprob agrees with its neighbours as well, but then the gap is below 0.05 nats.
- A file in which only some sequences are shifted agrees best without a shift.

## Seen in
modelscope/ms-swift#8196 (trainer logprobs shifted left by one), VeOmni#917 (labels shifted twice; differences of 12 to 16)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LEAST = 32
"""Pairs below which a shift fits by chance."""
SMALL = 0.05


@rule("PAR028", "shifted-logprobs", severity="error", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    gaps = evidence.shifted_gaps
    pairs, unshifted = gaps[0]
    if pairs < LEAST:
        raise Skip(f"only {count(pairs, 'token')} with a compared neighbour on both sides")
    if unshifted <= SMALL:
        return
    shift, (_, shifted) = min(((k, gaps[k]) for k in (-1, 1)), key=lambda item: item[1][1])
    if shifted < unshifted / 4:
        direction = "one token later" if shift > 0 else "one token earlier"
        text = f"the engine's logprobs agree with the trainer's of {direction}: |Δ| is {shifted:.3g} nats there, and "
        text += f"{unshifted:.3g} unshifted"
        yield Problem(text, hint="logits[i - 1] give the logprob of tokens[i]: move one side")
