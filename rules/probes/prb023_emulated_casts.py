"""Even with the roundings of eager mode, inductor computes other logprobs.

## What it checks
The same tokens are scored and decoded in eager mode, and by inductor that rounds between fused operations as eager does
(TORCHINDUCTOR_EMULATE_PRECISION_CASTS). In float32 they are within 1e-3 nats, in narrower types within a mult_prob_error of 1.05.

## Why it matters
Roundings that a fused kernel leaves out are the known cause of a gap under compilation, and this setting puts them back. What is
left has another cause.

## How to fix
Run rollouts eager, or with graphs but without inductor: vLLM `--enforce-eager`, or `--compilation-config '{"backend": "eager"}'`.

## When it can be wrong
In float32 there is nothing to round, and the setting changes little. NeMo-RL calls this no strict test: models train well with such
a gap.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py: DeepSeek-R1-Distill-Qwen-1.5B is off by 0.39 nats with
it as without it, and agrees without inductor
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB023", "emulated-casts", severity="warning", on="probe", when=asked("casts"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("casts", AlternativesSeen)
    for each in differing(seen):
        yield Problem(
            f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those of {seen.base} (mult_prob_error"
            f" {each.error:.4g})",
            hint="run rollouts without inductor, if the gap to the trainer matters more than speed",
        )
