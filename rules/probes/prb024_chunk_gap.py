"""Prompts that are computed in chunks get other logprobs than those computed whole.

## What it checks
The same tokens are scored and decoded with prompts computed whole, and in chunks of 16 tokens.

## Why it matters
Chunks are meant to change when something is computed, not what. Defaults change between versions of an engine, and with the memory
of a GPU, so a gap that came with either is looked for in the weights.

## How to fix
Set it explicitly: vLLM `--no-enable-chunked-prefill`, SGLang `--chunked-prefill-size -1`.

## When it can be wrong
Chunks change the shapes of matrix products, and with them the rounding; narrow types are judged by the mean.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1, which held scheduling and caching still before it looked for other causes
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB024", "chunk-gap", severity="warning", on="probe", when=asked("chunks"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("chunks", AlternativesSeen)
    for each in differing(seen):
        yield Problem(
            f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those with {seen.base} (mult_prob_error"
            f" {each.error:.4g})",
            hint="set it explicitly for rollouts, and tell the engine's maintainers",
        )
