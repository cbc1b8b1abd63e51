"""Prompts that the engine computes in chunks get other logprobs than those computed whole.

## What it checks
The engine scores and decodes the same tokens with whole prompts and with chunks of 16 tokens.

## Why it matters
Chunks should change when something is computed, not what. Defaults change between versions of an engine, and with the memory of a
GPU; teams then look for a gap that came with either in the weights.

## How to fix
Set it explicitly: vLLM `--no-enable-chunked-prefill`, SGLang `--chunked-prefill-size -1`.

## When it can be wrong
Chunks change the shapes of matrix products, and with them the rounding; the rule judges narrow dtypes by the mean.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1, which held scheduling and caching still before it looked for other causes
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB024", "chunk-gap", severity="warning", on="probe", when=requires_probe("chunks"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("chunks", SetupsResult)
    for gap in find_differing_setups(result):
        yield Problem(
            f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those with {result.base}"
            f" (mult_prob_error {gap.error:.4g})",
            hint="set it explicitly for rollouts, and tell the engine's maintainers",
        )
