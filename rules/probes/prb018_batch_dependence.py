"""A request's logprobs depend on the other requests in its batch.

## What it checks
The engine decodes the same tokens one request at a time and all at once. In float32 they agree within 1e-3 nats, in narrower
dtypes within a mult_prob_error of 1.05.

## Why it matters
Rollouts come in batches of every size, so every ratio has a noise that cannot be reproduced. More than rounding is a fault:
padding, or state that leaks between requests.

## How to fix
Use batch-invariant kernels where the engine has them. For more than rounding, find the smallest batch that shows it.

## When it can be wrong
A mixture of experts near ties sends single tokens elsewhere.

## Seen in
NVIDIA-NeMo/RL's guide for new models; "Defeating Nondeterminism in LLM Inference", Thinking Machines, 2025
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.decode import DecodeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe
from ckptcheck.rollouts.gap_summary import exceeds_rounding


@rule("PRB018", "batch-dependence", severity="warning", on="probe", when=requires_probe("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("decode", DecodeResult)
    if exceeds_rounding(result.batch_gap, result.dtype):
        yield Problem(
            f"responses decoded together have other logprobs than alone: by up to"
            f" {result.batch_gap.largest:.3g} nats, mult_prob_error {result.batch_gap.mult_prob_error:.4g}",
            hint="vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference",
        )
