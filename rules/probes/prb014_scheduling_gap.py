"""Asynchronous scheduling changes the logprobs that the engine computes.

## What it checks
The engine scores and decodes the same tokens with asynchronous scheduling (SGLang: overlap scheduling) on and off.

## Why it matters
Scheduling should change when something is computed, not what. Its default changes between versions of an engine, and teams then
look for a gap that came with an upgrade in the weights.

## How to fix
Set it explicitly: vLLM `--no-async-scheduling`, SGLang `--disable-overlap-schedule`.

## When it can be wrong
Other batches round differently; the rule judges narrow dtypes by the mean.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1: async scheduling and prefix caching were pinned before the objective was touched
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB014", "scheduling-gap", severity="warning", on="probe", when=requires_probe("scheduling"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("scheduling", SetupsResult)
    for gap in find_differing_setups(result):
        yield Problem(
            f"with {gap.setup} logprobs are up to {gap.largest:.3g} nats from those with {result.base}"
            f" (mult_prob_error {gap.error:.4g})",
            hint="set it explicitly for rollouts, as PipelineRL did for parity, and tell the engine's maintainers",
        )
