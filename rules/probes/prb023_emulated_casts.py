"""Inductor computes other logprobs even with the roundings of eager mode.

## What it checks
The engine scores and decodes the same tokens in eager mode, and with inductor that rounds between fused operations as eager mode
does (TORCHINDUCTOR_EMULATE_PRECISION_CASTS).

- Every logprob is held to atol = rtol = 1e-3, as NeMo-RL's diagnostic 4 does with numpy's assert_allclose. The report says how many
  are beyond it, the largest absolute and relative difference, where it is, and which are NaN in one mode alone.
- Beside them stands the floor: eager mode against itself, decoding against prefill and a prefill against its repetition; and the
  seconds of both modes.
- It is a warning where rounding does not explain it: in float32 from 1e-3 nats on (stricter than diagnostic 4, whose rtol allows a
  logprob of -10 eleven times as much), in narrower dtypes from a mult_prob_error of 1.05 or five times the floor's mean |Δ| on.
  Else it is info, as diagnostic 4 is no strict test: narrow dtypes fail it often.

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
from ckptcheck.live.experiments.probes.compilation import CompilationResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB023", "emulated-casts", severity="warning", on="probe", when=requires_probe("casts"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("casts", CompilationResult)
    if result.exceeds_rounding:
        yield Problem(
            result.describe_gap(),
            hint="run rollouts without inductor, if the gap to the trainer matters more than speed",
        )
    elif result.worse.elements.beyond:
        yield Problem(
            f"{result.describe_gap()}: rounding of {result.dtype} explains it",
            hint="do nothing, unless the gap to the trainer is too large: then compare the modes by the report's table of seconds",
            severity="info",
        )
