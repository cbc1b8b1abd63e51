"""Planning the next step ahead changes what is computed.

## What it checks
The same tokens are scored and decoded with asynchronous scheduling (SGLang: overlap scheduling) on and off.

## Why it matters
Scheduling is meant to change when something is computed, not what. Its default changes between versions of an engine, so a
gap that came with an upgrade is looked for in the weights.

## How to fix
Set it explicitly: vLLM `--no-async-scheduling`, SGLang `--disable-overlap-schedule`.

## When it can be wrong
Other batches round otherwise; narrow types are judged by the mean.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1: async scheduling and prefix caching were pinned before the objective was touched
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB014", "scheduling-gap", severity="warning", on="probe", when=asked("scheduling"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("scheduling", AlternativesSeen)
    for each in differing(seen):
        yield Problem(
            f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those with {seen.base} (mult_prob_error"
            f" {each.error:.4g})",
            hint="set it explicitly for rollouts, as PipelineRL did for parity, and tell the engine's maintainers",
        )
