"""Compiled, the engine computes other logprobs than in eager mode.

## What it checks
The same tokens are scored and decoded in eager mode, with graphs alone, with inductor, and with inductor that rounds as eager
does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS): as many as the platform has. In float32 they are within 1e-3 nats, in narrower types
within a mult_prob_error of 1.05.

## Why it matters
A trainer mostly runs eager kernels. Inductor fuses operations and leaves out roundings between them, which helps accuracy and
hurts agreement.

## How to fix
Look at the table: what of graphs and inductor differs? vLLM `--enforce-eager`, or `--compilation-config '{"backend": "eager"}'`.

## When it can be wrong
NeMo-RL calls this no strict test: many models have such a gap and train well with it.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB010", "compiled-logprobs", severity="warning", on="probe", when=asked("graphs", "inductor", "casts"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    names = [name for name in ("graphs", "inductor", "casts") if name in trace.asked]
    if all(name in trace.left for name in names):
        raise Skip("; ".join(dict.fromkeys(trace.left[name] for name in names)))
    for name in names:
        if name in trace.left:
            continue
        seen = trace.of(name, AlternativesSeen)
        for each in differing(seen):
            yield Problem(
                f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those of {seen.base} (mult_prob_error"
                f" {each.error:.4g})",
                hint="run rollouts eager, or with graphs but without inductor, if the gap to the trainer matters more than speed",
            )
