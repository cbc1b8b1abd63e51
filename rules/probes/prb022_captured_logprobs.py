"""With CUDA graphs of eager kernels the engine computes other logprobs than in eager mode.

## What it checks
The engine scores and decodes the same tokens in eager mode, and with graphs (CUDA graphs) of the same eager kernels. In float32
they agree within 1e-3 nats, in narrower dtypes within a mult_prob_error of 1.05.

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
from ckptcheck.parity.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.parity.probes.trace import ProbeTrace, requires_probe


@rule("PRB022", "captured-logprobs", severity="warning", on="probe", when=requires_probe("graphs"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("graphs", SetupsResult)
    for gap in find_differing_setups(result):
        yield Problem(
            f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those of {result.base}"
            f" (mult_prob_error {gap.error:.4g})",
            hint="run rollouts without graphs until it is known why, and tell the engine's maintainers",
        )
