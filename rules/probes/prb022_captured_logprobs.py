"""With CUDA graphs of eager kernels the engine computes other logprobs than in eager mode.

## What it checks
The engine scores and decodes the same tokens in eager mode, and with graphs (CUDA graphs) of the same eager kernels.

- Every logprob is held to atol = rtol = 1e-3, as NeMo-RL's diagnostic 4 does with numpy's assert_allclose. The report says how many
  are beyond it, the largest absolute and relative difference, where it is, and which are NaN in one mode alone.
- Beside them stands the floor: eager mode against itself, decoding against prefill and a prefill against its repetition; and the
  seconds of both modes.
- It is a warning where rounding does not explain it: in float32 from 1e-3 nats on (stricter than diagnostic 4, whose rtol allows a
  logprob of -10 eleven times as much), in narrower dtypes from a mult_prob_error of 1.05 or five times the floor's mean |Δ| on.
  Else it is info, as diagnostic 4 is no strict test: narrow dtypes fail it often.

## Why it matters
A graph replays the kernels that it captured. Nothing is fused, so only padded batch sizes should change. A gap here means a kernel
that was chosen for another shape, or a buffer whose content changed since the capture.

## How to fix
vLLM `--enforce-eager`, SGLang `--disable-cuda-graph`; or other sizes to capture. Tell the engine's maintainers.

## When it can be wrong
- Batches are padded to a captured size, and a matrix product of another shape rounds differently; the rule judges narrow dtypes
  by the mean.
- CPUs have no such graphs: the rule is skipped there.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py, where graphs without inductor agree with eager mode;
NVIDIA-NeMo/RL#4243, where graphs were ruled out by hand, one switch after the other
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.compilation import CompilationResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB022", "captured-logprobs", severity="warning", on="probe", when=requires_probe("graphs"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("graphs", CompilationResult)
    if result.exceeds_rounding:
        yield Problem(
            result.describe_gap(),
            hint="run rollouts without graphs until it is known why, and tell the engine's maintainers",
        )
    elif result.worse.elements.beyond:
        yield Problem(
            f"{result.describe_gap()}: rounding of {result.dtype} explains it",
            hint="do nothing, unless the gap to the trainer is too large: then compare the modes by the report's table of seconds",
            severity="info",
        )
