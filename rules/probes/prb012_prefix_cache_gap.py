"""With unchanged weights, a cached prefix gives other logprobs than a computed one.

## What it checks
The engine answers prompts longer than a block of the prefix cache twice, the second time from the cache. An engine without a
prefix cache then decodes the same tokens.

## Why it matters
For a fixed model the cache is an optimisation that changes nothing. If it changes logprobs, identical prompts of one group get
different logprobs, depending on the order in which they came.

## How to fix
Turn the prefix cache off (vLLM `--no-enable-prefix-caching`, SGLang `--disable-radix-cache`) until it is repaired.

## When it can be wrong
Recurrent layers can keep states of prefixes in a narrower dtype than they compute in.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1 turned it off to have one degree of freedom less
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.experiments.probes.setups import SetupsResult, find_differing_setups
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB012", "prefix-cache-gap", severity="error", on="probe", when=requires_probe("prefix-cache"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("prefix-cache", SetupsResult)
    if not result.cached:
        raise Skip("no token came from the prefix cache")
    for gap in find_differing_setups(result):
        yield Problem(
            f"after {result.cached} tokens from the prefix cache, decoding is up to {gap.largest:.3g} nats"
            f" from decoding without it",
            hint="turn the prefix cache off for rollouts, and tell the engine's maintainers",
        )
