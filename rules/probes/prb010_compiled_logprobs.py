"""Compiled with inductor, the engine computes other logprobs than in eager mode.

## What it checks
The engine scores and decodes the same tokens in eager mode and with torch's inductor. In float32 they agree within 1e-3 nats, in
narrower dtypes within a mult_prob_error of 1.05.

## Why it matters
A trainer mostly runs eager kernels. Inductor fuses operations and leaves out the roundings between them, which helps accuracy and
hurts agreement.

## How to fix
- Let inductor round as eager mode does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1; PRB023 says whether that closes the gap here).
- Or do without inductor: vLLM `--enforce-eager`, or `--compilation-config '{"backend": "eager"}'`, which keeps graphs.

## When it can be wrong
NeMo-RL does not treat this as a strict test: many models have such a gap and train well with it.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.parity.probes.trace import ProbeTrace, requires_probe


@rule("PRB010", "compiled-logprobs", severity="warning", on="probe", when=requires_probe("inductor"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("inductor", SetupsResult)
    for gap in find_differing_setups(result):
        yield Problem(
            f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those of {result.base}"
            f" (mult_prob_error {gap.error:.4g})",
            hint="run rollouts eager, or with graphs but without inductor, if the gap to the trainer matters more than speed",
        )
