"""A request's logprobs depend on which others are computed with it.

## What it checks
The same tokens are decoded one request at a time and all at once. In float32 they are within 1e-3 nats, in narrower types
within a mult_prob_error of 1.05.

## Why it matters
Rollouts come in batches of every size, so this is noise in every ratio that no replay gives again. More than rounding is a
fault: padding, or state that leaks between requests.

## How to fix
Use batch-invariant kernels where the engine has them. For more than rounding, find the smallest batch that shows it.

## When it can be wrong
A mixture of experts near ties sends single tokens elsewhere.

## Seen in
NVIDIA-NeMo/RL's guide for new models; "Defeating Nondeterminism in LLM Inference", Thinking Machines, 2025
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.decode import DecodeSeen
from ckptcheck.parity.probes.limits import apart
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB018", "batch-dependence", severity="warning", on="probe", when=asked("decode"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("decode", DecodeSeen)
    if apart(seen.together, seen.dtype):
        yield Problem(
            f"responses that are decoded together have other logprobs than alone: by up to {seen.together.largest:.3g} nats,"
            f" mult_prob_error {seen.together.mult_prob_error:.4g}",
            hint="vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference",
        )
