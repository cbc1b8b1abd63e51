"""In captured graphs, without a compiler, the engine computes other logprobs than in eager mode.

## What it checks
The same tokens are scored and decoded in eager mode, and with graphs (CUDA graphs) of the same eager kernels. In float32 they are
within 1e-3 nats, in narrower types within a mult_prob_error of 1.05.

## Why it matters
A graph replays the kernels that it captured: nothing is fused, so nothing should change but padded batch sizes. A gap here is a
kernel chosen for another shape, or a buffer that is not what it was at the capture.

## How to fix
vLLM `--enforce-eager`, SGLang `--disable-cuda-graph`; or other sizes to capture. Tell the engine's maintainers.

## When it can be wrong
Batches are padded to a captured size, and a matrix product of another shape rounds otherwise; narrow types are judged by the mean.
CPUs have no such graphs: the rule is skipped there.

## Seen in
NVIDIA-NeMo/RL tools/model_diagnostics/4.vllm_precision_compilation_test.py, where graphs without inductor agree with eager mode;
NVIDIA-NeMo/RL#4243, where graphs were ruled out by hand, one switch after the other
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB022", "captured-logprobs", severity="warning", on="probe", when=asked("graphs"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("graphs", AlternativesSeen)
    for each in differing(seen):
        yield Problem(
            f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those of {seen.base} (mult_prob_error"
            f" {each.error:.4g})",
            hint="run rollouts without graphs until it is known why, and tell the engine's maintainers",
        )
