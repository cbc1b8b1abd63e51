"""Compiled by inductor, the engine computes other logprobs than in eager mode.

## What it checks
The same tokens are scored and decoded in eager mode and with torch's inductor. In float32 they are within 1e-3 nats, in narrower
types within a mult_prob_error of 1.05.

## Why it matters
A trainer mostly runs eager kernels. Inductor fuses operations and leaves out roundings between them, which helps accuracy and
hurts agreement.

## How to fix
Have it round as eager does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1; PRB023 says whether that closes the gap here), or leave
inductor out: vLLM `--enforce-eager`, or `--compilation-config '{"backend": "eager"}'`, which keeps graphs.

## When it can be wrong
NeMo-RL calls this no strict test: many models have such a gap and train well with it.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB010", "compiled-logprobs", severity="warning", on="probe", when=asked("inductor"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("inductor", AlternativesSeen)
    for each in differing(seen):
        yield Problem(
            f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those of {seen.base} (mult_prob_error"
            f" {each.error:.4g})",
            hint="run rollouts eager, or with graphs but without inductor, if the gap to the trainer matters more than speed",
        )
