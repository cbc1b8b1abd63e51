"""Decoding computes other logprobs than one prefill of the same tokens.

## What it checks
The engine decodes long responses token by token; the probe then sends the whole sequences as prompts. The mean of exp|Δ| over all
tokens, and over each sequence, stays under 1.05; 1.0 is perfect.

## Why it matters
Rollouts are decoded, trainers compute a prefill. If the engine's two paths differ, no trainer can agree with the rollouts,
however well the weights were synced. Errors of position or of state grow with the length.

## How to fix
Try another attention backend, `enforce_eager`, and float32. A gap that grows with the position points at positions or at a
recurrent state; an even gap points at kernels.

## When it can be wrong
In bfloat16, where router logits are nearly equal, single tokens of a mixture of experts differ by much; look at the worst
sequence.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/2.long_generation_decode_vs_prefill.py, whose
comments mention a value above 300 beside a healthy 1.007
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.decode import DecodeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import LOOSE


@rule("PRB002", "decode-off-prefill", severity="error", on="probe", when=requires_probe("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("decode", DecodeResult)
    gap = result.prefill
    if gap.mult_prob_error > LOOSE or gap.worst > LOOSE:
        first_half, second_half = result.halves
        grows = (
            f"; it grows from {first_half:.4g} in the first half to {second_half:.4g} in the second"
            if second_half > first_half
            else ""
        )
        yield Problem(
            f"decoding and one prefill of the same {gap.tokens} tokens differ: mult_prob_error"
            f" {gap.mult_prob_error:.4g}, the worst sequence {gap.worst:.4g}{grows}",
            hint="decode in float32, and with another attention backend, to see which part of the decode path it is",
        )
