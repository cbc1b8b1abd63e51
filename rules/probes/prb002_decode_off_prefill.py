"""Decoding computes other logprobs than one prefill of the same tokens.

## What it checks
Long responses are decoded token by token, then handed in whole as prompts. The mean of exp|Δ| over all tokens, and over each
sequence, stays under 1.05, and 1.0 is perfect.

## Why it matters
Rollouts are decoded, trainers compute a prefill. If the engine's two paths differ, no trainer can agree with the rollouts,
however well the weights were synced. Errors of position or of state grow with the length.

## How to fix
Try another attention backend, `enforce_eager`, and float32. A gap that grows with the position is a matter of positions or of a
recurrent state; one that is even is a matter of kernels.

## When it can be wrong
In bfloat16 with routers near a tie, single tokens of a mixture of experts differ by much; look at the worst sequence.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/2.long_generation_decode_vs_prefill.py, whose
comments tell of a value above 300 beside a healthy 1.007
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.decode import DecodeSeen
from ckptcheck.parity.probes.limits import LOOSE
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB002", "decode-off-prefill", severity="error", on="probe", when=asked("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("decode", DecodeSeen)
    gap = seen.prefill
    if gap.mult_prob_error > LOOSE or gap.worst > LOOSE:
        first, second = seen.halves
        grows = f"; it grows from {first:.4g} in the first half to {second:.4g} in the second" if second > first else ""
        yield Problem(
            f"decoding and one prefill of the same {gap.tokens} tokens are apart: mult_prob_error"
            f" {gap.mult_prob_error:.4g}, the"
            f" worst sequence {gap.worst:.4g}{grows}",
            hint="decode in float32, and with another attention backend, to see which part of the decode path it is",
        )
