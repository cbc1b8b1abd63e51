"""The gap grows along the response.

## What it checks
The mean |Δ| by the position in the response, in powers of two with at least 64 tokens each. The rule compares the last range
with the first quarter, and reports it if it is above 0.02 nats and 4 times as large.

## Why it matters
The trainer scores a response in one prefill; the engine decoded it token by token. A gap that grows with the position points at
a cache: keys and values in low precision, rotary positions beyond a table, a recurrent state that differs from what a prefill
computes.

## How to fix
Score the engine's own tokens by prefill on the engine (`ckptcheck parity probe`). If that agrees with the trainer, the engine's
decoding is wrong.

## When it can be wrong
Few responses are that long, and they may be another kind of text than short ones.

## Seen in
NeMo-RL tools/model_diagnostics/2.long_generation_decode_vs_prefill.py; sgl-project/sglang#27140
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

LEAST = 64
"""Tokens of a bin of positions: fewer give a mean that single outliers decide."""
SMALL = 0.02
"""Nats: below this a bin is at rounding in bfloat16, whatever its ratio to the first."""
FACTOR = 4.0


@rule("PAR025", "position-drift", severity="warning", on="rollouts", when=lambda evidence: evidence.has_both_sides)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    bins = [
        (place, tokens, abs_mean) for place, tokens, abs_mean, _ in evidence.remaining_gap.profile if tokens >= LEAST
    ]
    if len(bins) < 4:
        raise Skip(
            f"responses are too short or too few to compare positions: {count(len(bins), 'range')} of them with {LEAST} tokens"
        )
    early = bins[: max(1, len(bins) // 4)]
    start = sum(tokens * abs_mean for _, tokens, abs_mean in early) / sum(tokens for _, tokens, _ in early)
    place, tokens, abs_mean = bins[-1]
    if abs_mean > SMALL and abs_mean > FACTOR * start:
        text = f"|Δ| is {start:.3g} nats at the beginning of responses, and {abs_mean:.3g} from token {place:,} on "
        text += f"({count(tokens, 'token')})"
        yield Problem(text, hint="compare the engine's decoding with its own prefill of the same tokens")
