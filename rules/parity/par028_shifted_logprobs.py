"""The two sides agree better when one is moved by a token.

## What it checks
mean |engine_i - trainer_(i+k)| for k = -1, 0, 1 over the same tokens, where the gap is above 0.05 nats: a shift that takes
three quarters of it away.

## Why it matters
A logit predicts the next token: whoever forgets that, or allows for it twice, pairs every logprob with its neighbour's. The
numbers look plausible, the ratios are noise.

## How to fix
Gather logits[i - 1] at tokens[i]. Labels that a data loader shifted already must not be shifted again.

## When it can be wrong
It needs 32 tokens with a compared neighbour on both sides, and tries one token only: a shift by two, or by a whole
prompt, is a large gap without a cause here. Text in which every token has nearly the same logprob agrees with its
neighbours as well; but then the gap is below 0.05 nats. A file in which only some sequences are shifted agrees best
as it is.

## Seen in
modelscope/ms-swift#8196 (trainer logprobs shifted left by one), VeOmni#917 (labels shifted twice; differences of 12 to 16)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count
from ckptcheck.rule import Skip

LEAST = 32
SMALL = 0.05


@rule("PAR028", "shifted-logprobs", severity="error", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    found = judged.shifts
    pairs, apart = found[0]
    if pairs < LEAST:
        raise Skip(f"only {count(pairs, 'token')} with a compared neighbour on both sides")
    if apart <= SMALL:
        return
    shift, (_, best) = min(((k, found[k]) for k in (-1, 1)), key=lambda item: item[1][1])
    if best < apart / 4:
        where = "one token later" if shift > 0 else "one token earlier"
        text = f"the engine's logprobs agree with the trainer's of {where}: |Δ| is {best:.3g} nats there, and "
        text += f"{apart:.3g} as the file has it"
        yield Problem(text, hint="logits[i - 1] give the logprob of tokens[i]: move one side")
