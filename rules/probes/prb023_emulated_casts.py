"""Inductor computes other logprobs even with the roundings of eager mode.

## What it checks
The engine scores and decodes the same tokens in eager mode, and with inductor that rounds between fused operations as eager mode
does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS). In float32 they agree within 1e-3 nats, in narrower dtypes within a mult_prob_error
of 1.05.

## Why it matters
A fused kernel leaves out roundings; that is the known cause of a gap under compilation, and this setting puts them back. A gap
that remains has another cause.

## How to fix
Run rollouts eager, or with graphs but without inductor: vLLM `--enforce-eager`, or `--compilation-config '{"backend": "eager"}'`.

## When it can be wrong
- In float32 there is nothing to round, and the setting changes little.
- NeMo-RL does not treat this as a strict test: models train well with such a gap.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats with
it as without it, and agrees without inductor
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.parity.probes.trace import ProbeTrace, requires_probe


@rule("PRB023", "emulated-casts", severity="warning", on="probe", when=requires_probe("casts"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("casts", SetupsResult)
    for gap in find_differing_setups(result):
        yield Problem(
            f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those of {result.base}"
            f" (mult_prob_error {gap.error:.4g})",
            hint="run rollouts without inductor, if the gap to the trainer matters more than speed",
        )
