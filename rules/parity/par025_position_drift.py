"""The gap grows along the response.

## What it checks
mean |Δ| by the place in the response, in powers of two with at least 64 tokens each: the last one against the first
quarter. A finding when it is above 0.02 nats and 4 times as large.

## Why it matters
The trainer scores a response in one prefill, the engine decoded it token by token. A gap that grows with the place is a
cache: of keys and values in low precision, of rotary positions beyond a table, of a recurrent state that is not what a
prefill gives.

## How to fix
Score the engine's own tokens by prefill on the engine (`ckptcheck parity probe`): if that agrees with the trainer, decoding
is wrong.

## When it can be wrong
Responses that reach far are few, and may be another kind of text than short ones.

## Seen in
NeMo-RL tools/model_diagnostics/2.long_generation_decode_vs_prefill.py; sgl-project/sglang#27140
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.phrase import count
from ckptcheck.rule import Skip

LEAST = 64
SMALL = 0.02
FACTOR = 4.0


@rule("PAR025", "position-drift", severity="warning", on="rollouts", when=lambda judged: judged.scored)
def check(judged: Judged) -> Iterator[Problem]:
    bins = [(place, tokens, apart) for place, tokens, apart, _ in judged.gap.profile if tokens >= LEAST]
    if len(bins) < 4:
        raise Skip(
            f"responses are too short or too few for a profile: {count(len(bins), 'power')} of two with {LEAST} tokens"
        )
    early = bins[: max(1, len(bins) // 4)]
    start = sum(tokens * apart for _, tokens, apart in early) / sum(tokens for _, tokens, _ in early)
    place, tokens, apart = bins[-1]
    if apart > SMALL and apart > FACTOR * start:
        text = f"|Δ| is {start:.3g} nats at the beginning of responses, and {apart:.3g} from token {place:,} on "
        text += f"({count(tokens, 'token')})"
        yield Problem(text, hint="compare the engine's decoding with its own prefill of the same tokens")
