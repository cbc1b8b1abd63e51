"""The engine computes other logprobs for the same tokens when it repeats, batches or prefills them.

## What it checks
The engine decodes long responses token by token, one request at a time. The probe then has it compute the same tokens in three
other ways:

- once more, with the prefix cache reset in between;
- all requests at once;
- whole sequences as prompts, in one prefill.

In float32 the first two agree within 1e-3 nats, in narrower dtypes within a mean exp|Δ| (mult_prob_error) of 1.05. For the prefill
the mean exp|Δ| over all tokens, and over each sequence, stays under 1.05 in every dtype; 1.0 is perfect.

## Why it matters
- Nothing can be compared with an engine that does not agree with itself.
- Rollouts come in batches of every size, so every ratio has a noise that cannot be reproduced. More than rounding is a fault:
  padding, or state that leaks between requests.
- Rollouts are decoded, trainers compute a prefill. If the engine's two paths differ, no trainer can agree with the rollouts,
  however well the weights were synced. Errors of position or of state grow with the length.

## How to fix
- Repeated: reset caches, run eager, and look for state that outlives a request.
- Batched: use batch-invariant kernels where the engine has them. For more than rounding, find the smallest batch that shows it.
- Prefilled: try another attention backend, `enforce_eager`, and float32. A gap that grows with the position points at positions
  or at a recurrent state; an even gap points at kernels.

## When it can be wrong
- In bfloat16, where router logits are nearly equal, single tokens of a mixture of experts differ by much; look at the worst
  sequence.
- Some GPU kernels sum in any order; more than 1e-3 nats in float32 is still too much.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/2.long_generation_decode_vs_prefill.py, whose comments mention a value above 300 beside a
healthy 1.007; NVIDIA-NeMo/RL's guide for new models, which asks for ten runs of every cell; "Defeating Nondeterminism in LLM
Inference", Thinking Machines, 2025
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.same_engine import DecodeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import LOOSE, exceeds_rounding


@rule("PRB002", "path-dependent-logprobs", severity="error", on="probe", when=requires_probe("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("decode", DecodeResult)
    repeated, batched, prefilled = result.repeat_gap, result.batch_gap, result.prefill
    if exceeds_rounding(repeated, result.dtype):
        yield Problem(
            f"the same request, alone, gives other logprobs the second time: by up to {repeated.largest:.3g} nats",
            hint="look for caches that were not reset and for kernels that sum in any order",
            severity="warning",
        )
    if exceeds_rounding(batched, result.dtype):
        yield Problem(
            f"responses decoded together have other logprobs than alone: by up to"
            f" {batched.largest:.3g} nats, mult_prob_error {batched.mult_prob_error:.4g}",
            hint="vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference",
            severity="warning",
        )
    if prefilled.mult_prob_error > LOOSE or prefilled.worst > LOOSE:
        first_half, second_half = result.halves
        grows = (
            f"; it grows from {first_half:.4g} in the first half to {second_half:.4g} in the second"
            if second_half > first_half
            else ""
        )
        yield Problem(
            f"decoding and one prefill of the same {prefilled.tokens} tokens differ: mult_prob_error"
            f" {prefilled.mult_prob_error:.4g}, the worst sequence {prefilled.worst:.4g}{grows}",
            hint="decode in float32, and with another attention backend, to see which part of the decode path it is",
        )
